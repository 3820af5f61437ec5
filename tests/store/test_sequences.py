"""Any sequence of what people do to chats keeps every name true and loses no message."""

import shutil
import tempfile
from collections.abc import Iterable
from itertools import dropwhile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvchat.store import tree
from kvchat.store.store import Attachment, Generation, Message, Store

WORDS = st.sampled_from(["a", "b"])  # few, so that the same words often meet in the same place
PICK = st.integers(0, 10**6)


Branch = tuple[Message, ...]
Said = tuple[tuple[object, ...], ...]


def names(messages: Iterable[Message]) -> list[str]:
    return [message.hash for message in messages]


def said(messages: Iterable[Message]) -> Said:
    return tuple((one.role, one.content, one.attachments) for one in messages)


def texts(paths: set[Branch]) -> set[Said]:
    return {said(path) for path in paths}


def longest(paths: set[Any]) -> set[Any]:
    """The paths that no other one begins with."""
    return {
        path for path in paths if not any(other[: len(path)] == path for other in paths - {path})
    }


def without(path: Branch, name: str) -> Branch:
    """The path less the message of that name and the replies after it."""
    for at, message in enumerate(path):
        if message.hash == name:
            rest = dropwhile(lambda one: one.role == "assistant", path[at + 1 :])
            return (*path[:at], *rest)
    return path


class Chats(RuleBasedStateMachine):
    """Two chats with the same few words in them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder)

    @initialize()
    def begin(self) -> None:
        self.chats = [self.store.new_chat("", "").id for _ in range(2)]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def chat(self, pick: int) -> str:
        return self.chats[pick % len(self.chats)]

    def message(self, chat: str, pick: int) -> Message | None:
        messages = self.store.messages(chat)
        return messages[pick % len(messages)] if messages else None

    def paths(self, chat: str) -> set[Branch]:
        """The messages of each branch, shown or not, but for branches that another one contains."""
        with self.store._database.read() as connection:
            rows = connection.execute("SELECT tip FROM branches WHERE chat = ?", (chat,)).fetchall()
            return longest({tuple(tree.chain(connection, row["tip"])) for row in rows})

    def assert_nothing_lost(self, chat: str, before: set[Branch]) -> None:
        after = self.paths(chat)
        for path in before:
            assert any(other[: len(path)] == path for other in after)

    @rule(pick=PICK, word=WORDS, brings=st.booleans())
    def ask(self, pick: int, word: str, brings: bool) -> None:
        chat = self.chat(pick)
        before, paths = self.store.messages(chat), self.paths(chat)
        brought = (Attachment("d", "n", "whole", (), word),) if brings else ()
        new = self.store.append(chat, "user", word, brought)
        assert names(self.store.messages(chat)) == [*names(before), new.hash]
        self.assert_nothing_lost(chat, paths)

    @rule(pick=PICK, word=WORDS, finishes=st.booleans())
    def answer(self, pick: int, word: str, finishes: bool) -> None:
        chat = self.chat(pick)
        messages = self.store.messages(chat)
        if not messages or messages[-1].role != "user":
            return
        paths = self.paths(chat)
        self.store.start_draft(chat, messages[-1].hash)
        self.store.write_draft(chat, word, [1])
        if finishes:
            made = Generation("", (1,), "stop", {"of": chat}, [], "", 0.0)
            reply = self.store.finish_draft(chat, word, made)
            assert reply is not None
            shown = names(self.store.messages(chat))
            assert shown[: len(messages) + 1] == [*names(messages), reply.hash]
            assert self.store.generation(reply.hash, chat) is not None
        self.assert_nothing_lost(chat, paths)

    @rule(pick=PICK, which=PICK)
    def regenerate(self, pick: int, which: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None and message.role == "user":
            before = self.paths(chat)
            self.store.fork(chat, message.hash)
            assert self.store.messages(chat)[-1].hash == message.hash
            assert self.paths(chat) == before

    @rule(pick=PICK, which=PICK, word=WORDS)
    def edit(self, pick: int, which: int, word: str) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None and message.role == "user":
            before = self.paths(chat)
            self.store.fork(chat, message.parent)
            new = self.store.append(chat, "user", word)
            versions = self.store.siblings(chat, new.hash)
            assert {message.hash, new.hash} <= set(versions)
            assert len(set(versions)) == len(versions)
            self.assert_nothing_lost(chat, before)

    @rule(pick=PICK, which=PICK, version=PICK)
    def switch(self, pick: int, which: int, version: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None:
            before = self.paths(chat)
            versions = self.store.siblings(chat, message.hash)
            chosen = versions[version % len(versions)]
            self.store.switch(chat, chosen)
            assert chosen in names(self.store.messages(chat))
            assert self.paths(chat) == before

    @rule(pick=PICK, which=PICK)
    def delete_turn(self, pick: int, which: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is None or message.role != "user":
            return
        others = {one: self.store.messages(one) for one in self.chats if one != chat}
        before, shown = self.paths(chat), tuple(self.store.messages(chat))
        self.store.delete_turn(chat, message.hash)
        assert texts(self.paths(chat)) == longest(
            texts({without(path, message.hash) for path in before})
        )
        left = said(without(shown, message.hash))
        assert said(self.store.messages(chat))[: len(left)] == left
        for one, messages in others.items():
            assert self.store.messages(one) == messages

    @rule(pick=PICK, which=PICK)
    def note(self, pick: int, which: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None and message.role == "user":
            self.store.pin(chat, message.hash)
            self.store.add_ledger(chat, "retry", {}, [message.hash])

    @rule(pick=PICK)
    def begin_again(self, pick: int) -> None:
        gone = self.chat(pick)
        other = next(one for one in self.chats if one != gone)
        before = self.store.messages(other)
        self.store.delete(gone)
        self.chats[self.chats.index(gone)] = self.store.new_chat("", "").id
        assert self.store.messages(other) == before

    @rule()
    def reopen(self) -> None:
        before = {chat: self.paths(chat) for chat in self.chats}
        self.store.close()
        self.store = Store(self.folder)
        for chat in self.chats:
            self.assert_nothing_lost(chat, before[chat])

    @invariant()
    def every_name_is_true(self) -> None:
        assert self.store.verify() == []


Chats.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestChats = Chats.TestCase
