"""The turns of a branch as they are shown, made from what the store says of its messages.

A turn is read from the store once, and again where it has another version or newer figures; what
was done to it is put on it each time, which is no reading. Knows no ledger.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvchat.chat.arrange import JOINT
from kvchat.chat.marks import Marks
from kvchat.chat.rows import Exchange
from kvchat.chat.sources import source
from kvchat.store.news import News
from kvchat.store.records import Message, summary_name
from kvchat.store.store import Store

Turn = tuple[Message, Message | None]
"""A user message and the reply after it."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to the turns of a branch. `summary`: what the model sees in the place of those
    that are summarized; `failed`: why a question has no reply, or a broken one.
    """

    marks: Marks = field(default_factory=Marks)
    pinned: Collection[str] = ()
    summary: str | None = None
    failed: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """User messages with their replies, oldest first. Of replies in a row, as another program may
    send them, all is shown, under the name of the last; the model reads them so, too.
    """
    found: list[Turn] = []
    for message in messages:
        if message.role == "user":
            found.append((message, None))
        elif found:
            question, before = found[-1]
            if before is not None:
                message = replace(message, content=JOINT.join((before.content, message.content)))
            found[-1] = (question, message)
    return found


def exchanges(
    store: Store,
    chat: str,
    turns: Sequence[Turn],
    done: Done,
    before: Mapping[str, Exchange],
    news: News,
) -> Iterator[Exchange]:
    """`before`: turns as they were made last, by the names of their questions, of which `news`
    tells what changed.
    """
    for number, (question, reply) in enumerate(turns, 1):
        one = before.get(question.hash)
        if one is None or _is_new(one, question, reply, news):
            one = _read(store, chat, number, question, reply)
        yield _with(one, done)


def _is_new(one: Exchange, question: Message, reply: Message | None, news: News) -> bool:
    name = reply.hash if reply is not None else None
    return (
        news.all
        or one.reply_hash != name
        or question.parent in news.parents
        or (name is not None and name in news.replies)
    )


def _read(
    store: Store, chat: str, number: int, question: Message, reply: Message | None
) -> Exchange:
    made = store.generation(reply.hash, chat) if reply is not None else None
    found = versions(store, chat, question)
    shown = reply.hash if reply is not None else question.hash
    return Exchange(
        turn=number,
        user_hash=question.hash,
        text=question.content,
        documents=tuple(one.name for one in question.attachments),
        sources=tuple(map(source, question.attachments)),
        reply_hash=reply.hash if reply is not None else None,
        reply=reply.content if reply is not None else None,
        finish_reason=made.stop_reason if made is not None else None,
        figures=made.figures or None if made is not None else None,
        citations=made.citations if made is not None else [],
        left_out=False,
        sibling=found.index(shown) + 1 if shown in found else 1,
        num_siblings=max(1, len(found)),
    )


def versions(store: Store, chat: str, question: Message) -> list[str]:
    """Messages that stand for the versions of a turn: its questions, and each one's replies.

    A version is named by its reply where it has one, else by its question.
    """
    found: list[str] = []
    for sibling in store.siblings(chat, question.hash):
        found.extend(store.replies(chat, sibling) or [sibling])
    return found


def _with(one: Exchange, done: Done) -> Exchange:
    """The same object where nothing of it changed: a long chat has many of them."""
    name, marks = one.user_hash, done.marks
    left_out, pinned, evicted = name in marks.left_out, name in done.pinned, name in marks.evicted
    summary = done.summary if name in marks.summarized else None
    formats = marks.formats.get(name)
    is_broken = one.reply is None or one.finish_reason == "failed"
    problem = done.failed.get(name) if is_broken else None
    was = (one.left_out, one.pinned, one.evicted, one.summary, one.formats, one.problem)
    if was == (left_out, pinned, evicted, summary, formats, problem):
        return one
    return replace(
        one,
        left_out=left_out,
        pinned=pinned,
        evicted=evicted,
        summary=summary,
        formats=formats,
        problem=problem,
    )


def summary_of(store: Store, chat: str, turns: Sequence[Turn], marks: Marks) -> str | None:
    """What stands in the prompt for the turns that are summarized; None where none are."""
    if not marks.summarized:
        return None
    covered = [
        one.hash
        for turn in turns
        for one in turn
        if one is not None and turn[0].hash in marks.summarized
    ]
    kept = store.summaries(chat).get(summary_name(covered))
    return kept.text if kept is not None else ""
