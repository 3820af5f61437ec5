"""The branch of a chat that is shown, as turns: each user message with the reply after it."""

from collections.abc import Sequence
from dataclasses import replace

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.keep import why_failed
from kvchat.chat.marks import Marks, marks
from kvchat.chat.rows import Exchange
from kvchat.store.records import Message, summary_name
from kvchat.store.store import Store


class Branch:
    def __init__(self, store: Store, chat: str) -> None:
        self._store = store
        self._chat = chat

    def questions(self) -> list[Message]:
        return [one for one in self._store.messages(self._chat) if one.role == "user"]

    def turns(self) -> list[tuple[Message, Message | None]]:
        """User messages with their replies, oldest first."""
        found: list[tuple[Message, Message | None]] = []
        for message in self._store.messages(self._chat):
            if message.role == "user":
                found.append((message, None))
            elif found:
                found[-1] = (found[-1][0], message)
        return found

    def versions(self, question: Message) -> list[str]:
        """Messages that stand for the versions of a turn: its questions, and each one's replies.

        A version is named by its reply where it has one, else by its question.
        """
        found: list[str] = []
        for sibling in self._store.siblings(self._chat, question.hash):
            found.extend(self._store.replies(self._chat, sibling) or [sibling])
        return found

    def exchanges(self) -> list[Exchange]:
        """What a screen shows of what is written down."""
        rows, turns = self._store.ledger(self._chat), self.turns()
        names = {one.hash for turn in turns for one in turn if one is not None}
        marked, pinned = marks(rows, names), self._store.pins(self._chat)
        failed, summary = why_failed(rows), self._summary(turns, marked)
        found = [
            replace(
                self._exchange(number, question, reply, question.hash in marked.left_out),
                pinned=question.hash in pinned,
                summary=summary if question.hash in marked.summarized else None,
                evicted=question.hash in marked.evicted,
                formats=marked.formats.get(question.hash),
            )
            for number, (question, reply) in enumerate(turns, 1)
        ]
        return [
            replace(one, problem=failed.get(one.user_hash))
            if one.reply is None or one.finish_reason == "failed"
            else one
            for one in found
        ]

    def _summary(
        self, turns: Sequence[tuple[Message, Message | None]], marked: Marks
    ) -> str | None:
        """What stands in the prompt for the turns that are summarized; None where none are."""
        if not marked.summarized:
            return None
        covered = [
            one.hash
            for turn in turns
            for one in turn
            if one is not None and turn[0].hash in marked.summarized
        ]
        kept = self._store.summaries(self._chat).get(summary_name(covered))
        return kept.text if kept is not None else ""

    def _exchange(
        self, number: int, question: Message, reply: Message | None, is_left_out: bool
    ) -> Exchange:
        made = self._store.generation(reply.hash, self._chat) if reply is not None else None
        versions = self.versions(question)
        shown = reply.hash if reply is not None else question.hash
        return Exchange(
            turn=number,
            user_hash=question.hash,
            text=question.content,
            documents=tuple(one.name for one in question.attachments),
            reply_hash=reply.hash if reply is not None else None,
            reply=reply.content if reply is not None else None,
            finish_reason=made.stop_reason if made is not None else None,
            figures=made.figures or None if made is not None else None,
            citations=made.citations if made is not None else [],
            left_out=is_left_out,
            sibling=versions.index(shown) + 1 if shown in versions else 1,
            num_siblings=max(1, len(versions)),
        )


def with_pending(exchanges: Sequence[Exchange], live: LiveAnswer | None) -> list[Exchange]:
    """A question that still waits for its documents stands at the end."""
    if live is None or live.turn != len(exchanges) + 1:
        return list(exchanges)
    pending = Exchange(live.turn, "", live.question, (), None, None, None, None, [], False, 1, 1)
    return [*exchanges, pending]
