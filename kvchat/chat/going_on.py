"""A reply that was cut goes on where it ended, in the same message.

The prompt ends with what the model wrote, by the very ids that it sampled where they are all of the
text, so nothing of it is computed again that is still in the cache. Knows no screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvchat.chat.admit import Admitted
from kvchat.chat.encode import defanged, encode, unused_marks
from kvchat.chat.keep import KeepInChat
from kvchat.errors import KVChatError, RequestError
from kvchat.store.records import Begun, Message
from kvchat.store.store import Store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HALF = "\ufffd"


def last_reply(store: Store, chat: str, question: Message) -> Message:
    """The reply that the chat ends with. Raises RequestError where it does not answer this."""
    messages = store.messages(chat)
    if len(messages) < 2 or messages[-1].parent != question.hash:
        raise RequestError("reply_not_last")
    return messages[-1]


def begun(
    store: Store, chat: str, reply: Message, tokenizer: PreTrainedTokenizerBase, opening: str
) -> Begun:
    """`opening`: what the prompt has of the reply's text already."""
    made = store.generation(reply.hash, chat)
    text = reply.content.removeprefix(opening)
    ids = made.sampled_ids if made is not None else ()
    if not ids or not _are_text(tokenizer, ids, text):
        ids = _encoded(tokenizer, text)
    return Begun(reply.hash, reply.content, ids)


def _are_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str) -> bool:
    """Whether the text is all that the ids say: bytes that are no character left no trace in it,
    but at the end they may be half of one that is still to come. Ids that the tokenizer does not
    have leave no trace in it either, and no model can read them.
    """
    if max(ids) >= len(tokenizer):
        return False
    decoded = _decoded(tokenizer, ids)
    return not decoded.endswith(_HALF) and decoded.replace(_HALF, "") == text.replace(_HALF, "")


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Of one list of ids it is one text; the library's annotation allows for batches."""
    try:
        return str(
            tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )
    except (IndexError, OverflowError, ValueError):  # ids of another model
        return ""


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    special = frozenset(t.content for t in tokenizer.added_tokens_decoder.values() if t.special)
    (mark,) = unused_marks([text], 1)
    return encode(tokenizer, defanged(text, special, mark), mark, ()).ids


class KeepLonger:
    """Keeps the whole reply: what was there, and what comes now."""

    def __init__(self, kept: KeepInChat, store: Store, chat: str, begun: Begun) -> None:
        self._kept = kept
        self._store = store
        self._chat = chat
        self._begun = begun

    def admitted(self, admitted: Admitted) -> Sequence[dict[str, Any]]:
        return self._kept.admitted(admitted)

    def grow(self, text: str, ids: Sequence[int]) -> None:
        self._kept.grow(text, (*self._begun.ids, *ids))

    def ended(self, text: str, ids: Sequence[int], reason: str, figures: dict[str, Any]) -> None:
        """Where nothing came, the reply stays as it was, unless that is its end."""
        if not ids and reason in ("cancelled", "failed"):
            self._store.drop_draft(self._chat)
            return
        figures = _as_one(figures, len(self._begun.ids))
        self._kept.ended(text, (*self._begun.ids, *ids), reason, figures)

    def failed(self, error: KVChatError) -> None:
        self._kept.failed(error)

    def took(self, taken: dict[str, Any]) -> dict[str, Any]:
        return self._kept.took(taken)


def _as_one(figures: dict[str, Any], num_begun: int) -> dict[str, Any]:
    """The tokens of the whole reply; seconds and rates stay those of its newest part."""
    if not figures:
        return figures
    prompt = figures["prompt_tokens"] - num_begun
    return figures | {
        "prompt_tokens": prompt,
        "reused_tokens": min(figures["reused_tokens"], prompt),
        "reply_tokens": figures["reply_tokens"] + num_begun,
    }
