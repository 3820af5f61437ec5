"""What the model is told: the messages of a branch, or those of a request, as template messages."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from kvchat.chat.admit import Told
from kvchat.chat.asked_back import asked_back
from kvchat.chat.attached import Attached
from kvchat.chat.pins import kept_turns
from kvchat.chat.reasoning import without_reasoning
from kvchat.chat.shelf import Shelf
from kvchat.chat.template import ChatMessage
from kvchat.store.base import clean
from kvchat.store.records import LedgerEntry, Message, Role, message_hash
from kvchat.store.store import Store

TOO_LONG = (
    "prompt_over_length",
    "prompt_over_memory",
    "pinned_turns_too_large",
    "pinned_documents_too_large",
)


def told_of_branch(
    store: Store,
    chat: str,
    shelf: Shelf,
    attached: Attached,
    *,
    keeps_reasoning: bool = False,
) -> Told:
    """The branch that is shown, with the documents that stand after the system text. Replies are
    told without what the model thought before them, unless that is kept.
    """
    documents = attached.leading_texts(shelf)
    there = [attached.as_told(one) for one in store.messages(chat)]
    pages = store.document_pins(chat)
    row = store.chat(chat)
    ledger = store.ledger(chat)
    asked = asked_back(ledger, {one.hash for one in there})
    refused = _refused(there, ledger)
    questions = [one.hash for one in there if one.role == "user"]
    return Told(
        row.system_text,
        documents,
        [
            ChatMessage(one.role, message_text(one, keeps_reasoning=keeps_reasoning), one.hash)
            for one in there
            if one.hash not in refused
        ],
        kept_turns(there, store.pins(chat), pages, shelf),
        datetime.date.fromtimestamp(row.created_at_s),
        pages,
        asked.wanted,
        asked.restore,
        refused=frozenset(n for n, one in enumerate(questions, 1) if one in refused),
    )


def _refused(there: Sequence[Message], ledger: Iterable[LedgerEntry]) -> frozenset[str]:
    """Questions before the newest one that were too long and have no reply: no prompt ever held
    them, and kept in it they would push out what was answered.
    """
    long = {turn for row in ledger if row.reason in TOO_LONG for turn in row.turns}
    unanswered = (one for one, after in pairwise(there) if one.role == after.role == "user")
    return frozenset(one.hash for one in unanswered if one.hash in long)


def message_text(message: Message, *, keeps_reasoning: bool = False) -> str:
    """A message as the model reads it: the text that came along, then the words."""
    if message.role == "assistant":
        return message.content if keeps_reasoning else without_reasoning(message.content)
    brought = [one.text for one in message.attachments if one.text]
    return "\n\n".join([*brought, message.content])


def told_of_messages(messages: Sequence[Mapping[str, str]]) -> Told:
    """A request's messages, named as a chat would name them; those of the system stand first."""
    system = "\n\n".join(one["content"] for one in messages if one["role"] == "system")
    found: list[ChatMessage] = []
    parent: str | None = None
    for one in messages:
        if one["role"] != "system":
            role: Role = "user" if one["role"] == "user" else "assistant"
            content = clean(one["content"])
            parent = message_hash(parent, role, content, ())
            found.append(ChatMessage(role, content, parent))
    return Told(clean(system), (), found)
