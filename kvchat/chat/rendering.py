"""The prompts that a chat may become, each rendered once: whole, or without some of its turns; and
what its turns took, kept from one question to the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from kvchat.chat.arrange import SUMMARY, ChatMessage
from kvchat.chat.outline import (
    NOTHING_KNOWN,
    Outline,
    Sizes,
    as_whole,
    key_of,
    measured,
    outline_of,
)
from kvchat.chat.template import Prompt, render
from kvchat.settings import Settings

if TYPE_CHECKING:
    from kvchat.chat.admit import Admitted, Told
    from kvchat.engine.engine import Engine
    from kvchat.models.load import LoadedModel

MOST_CHATS = 4
Admit = Callable[["Told", "Engine", Settings], "Admitted"]


class Rendering:
    def __init__(self, told: Told, loaded: LoadedModel) -> None:
        self._told, self._loaded = told, loaded
        self._turns = turns_of(told.messages)
        self._keys = [key_of(turn) for turn in self._turns]
        told_numbers = (number for number in count(1) if number not in told.refused)
        self._numbers = list(islice(told_numbers, len(self._turns)))
        known = told.sizes.tokens
        self._known = {key: known[key] for key in self._keys if key in known}
        self._made: dict[frozenset[str], Prompt] = {}

    def prompt(self, left_out: Collection[str]) -> Prompt:
        """Without these turns."""
        names = frozenset(left_out)
        if names not in self._made:
            prompt = self._made[names] = self._rendered(names)
            self._known |= measured(prompt, self._keys)
        return self._made[names]

    def outline(self, left_out: Collection[str]) -> Outline:
        """The same; of the whole chat it is put together, where its turns' sizes are known."""
        if not left_out:
            names = {key[0] for key in self._keys}
            before = frozenset(one for one in self._told.sizes.left_out if one in names)
            if before:
                found = as_whole(
                    self.prompt(before), self._keys, self._numbers, before, self._known
                )
                if found is not None:
                    return found
        return outline_of(self.prompt(left_out))

    def sizes(self, left_out: Collection[str]) -> Sizes:
        """What is known now, for the next question."""
        return Sizes(self._known, left_out)

    def _rendered(self, left_out: Collection[str]) -> Prompt:
        told = self._told
        messages: list[ChatMessage] = []
        numbers: list[int | None] = []
        for number, turn in zip(self._numbers, self._turns, strict=True):
            if turn[0].name not in left_out:
                messages += turn
                numbers.append(number)
            elif told.summary and None not in numbers:
                messages.append(ChatMessage("user", told.summary, SUMMARY))
                numbers.append(None)
        return render(
            self._loaded.tokenizer,
            self._loaded.chat_template,
            told.system,
            told.documents,
            messages,
            turn_numbers=numbers,
            date=told.date,
        ).with_begun(told.begun)


def turns_of(messages: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """The messages turn by turn: each user message with the replies after it."""
    turns: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


class KnownSizes:
    """Of chats in use, as one model reads them."""

    def __init__(self) -> None:
        self._chats: dict[str, Sizes] = {}
        self._read_by: tuple[Callable[[], Any], str] = (lambda: None, "")

    def remembering(self, chat: str, admit: Admit) -> Admit:
        """The same, told what is known of the chat's turns, of which more is known afterwards."""

        def admit_and_keep(told: Told, engine: Engine, settings: Settings) -> Admitted:
            known = self._of(chat, engine.loaded)
            admitted = admit(replace(told, sizes=known), engine, settings)
            self._keep(chat, admitted.sizes)
            return admitted

        return admit_and_keep

    def _of(self, chat: str, loaded: LoadedModel) -> Sizes:
        tokenizer, template = self._read_by
        if tokenizer() is not loaded.tokenizer or template != loaded.chat_template:
            self._chats = {}
            self._read_by = weakref.ref(loaded.tokenizer), loaded.chat_template
        return self._chats.get(chat, NOTHING_KNOWN)

    def _keep(self, chat: str, sizes: Sizes) -> None:
        others = [(name, one) for name, one in self._chats.items() if name != chat]
        self._chats = dict([*others[1 - MOST_CHATS :], (chat, sizes)])
