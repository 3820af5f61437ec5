"""Any sequence of what people do to chats keeps every name true and loses no message."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvchat.store.store import Attachment, Generation, Message, Store

WORDS = st.sampled_from(["a", "b"])  # few, so that the same words often meet in the same place
PICK = st.integers(0, 10**6)


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

    def reached(self, chat: str) -> set[str]:
        """All messages of any branch."""
        with self.store._database.read() as connection:
            rows = connection.execute("SELECT message FROM reached WHERE chat = ?", (chat,))
            return {row["message"] for row in rows}

    @rule(pick=PICK, word=WORDS, brings=st.booleans())
    def ask(self, pick: int, word: str, brings: bool) -> None:
        chat = self.chat(pick)
        before = self.store.messages(chat)
        brought = (Attachment("d", "n", "whole", (), word),) if brings else ()
        new = self.store.append(chat, "user", word, brought)
        assert [m.hash for m in self.store.messages(chat)] == [*(m.hash for m in before), new.hash]

    @rule(pick=PICK, word=WORDS, finishes=st.booleans())
    def answer(self, pick: int, word: str, finishes: bool) -> None:
        chat = self.chat(pick)
        messages = self.store.messages(chat)
        if not messages or messages[-1].role != "user":
            return
        self.store.start_draft(chat, messages[-1].hash)
        self.store.write_draft(chat, word, [1])
        if finishes:
            made = Generation("", (1,), "stop", {"of": chat}, [], "", 0.0)
            reply = self.store.finish_draft(chat, word, made)
            assert reply is not None
            shown = [message.hash for message in self.store.messages(chat)]
            assert shown[: len(messages) + 1] == [*(m.hash for m in messages), reply.hash]
            assert self.store.generation(reply.hash, chat) is not None

    @rule(pick=PICK, which=PICK)
    def regenerate(self, pick: int, which: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None and message.role == "user":
            before = self.reached(chat)
            self.store.fork(chat, message.hash)
            assert self.store.messages(chat)[-1].hash == message.hash
            assert self.reached(chat) == before

    @rule(pick=PICK, which=PICK, word=WORDS)
    def edit(self, pick: int, which: int, word: str) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None and message.role == "user":
            self.store.fork(chat, message.parent)
            new = self.store.append(chat, "user", word)
            versions = self.store.siblings(chat, new.hash)
            assert {message.hash, new.hash} <= set(versions)
            assert len(set(versions)) == len(versions)

    @rule(pick=PICK, which=PICK, version=PICK)
    def switch(self, pick: int, which: int, version: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is not None:
            versions = self.store.siblings(chat, message.hash)
            chosen = versions[version % len(versions)]
            self.store.switch(chat, chosen)
            assert chosen in [one.hash for one in self.store.messages(chat)]

    @rule(pick=PICK, which=PICK)
    def delete_turn(self, pick: int, which: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, which)
        if message is None or message.role != "user":
            return
        others = {one: self.store.messages(one) for one in self.chats if one != chat}
        before = self.store.messages(chat)
        at = [one.hash for one in before].index(message.hash)
        after = at + 1
        while after < len(before) and before[after].role == "assistant":
            after += 1
        left = [(one.role, one.content, one.attachments) for one in before[:at] + before[after:]]
        self.store.delete_turn(chat, message.hash)
        shown = [(m.role, m.content, m.attachments) for m in self.store.messages(chat)]
        assert shown[: len(left)] == left  # where it ends early, another branch may go on
        assert message.hash not in self.reached(chat) or message.hash in {
            one.hash for one in self.store.messages(chat)
        }
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
        before = {chat: self.reached(chat) for chat in self.chats}
        self.store.close()
        self.store = Store(self.folder)
        for chat in self.chats:
            assert before[chat] <= self.reached(chat)

    @invariant()
    def every_name_is_true(self) -> None:
        assert self.store.verify() == []


Chats.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestChats = Chats.TestCase
