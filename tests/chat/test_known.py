"""What is known of a chat is carried on from before, and is the same as if all of it were read."""

import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvchat.chat.known import Known, KnownChats, read_on
from kvchat.planner.ledger import entry
from kvchat.store import tree
from kvchat.store.database import FILE_NAME
from kvchat.store.ledger_rows import entries
from kvchat.store.records import Attachment, Generation, Summary, summary_name
from kvchat.store.store import Store

WORDS = st.sampled_from(("a", "b", "c"))
CODES = ("requantize", "evict", "offload", "bring_back", "held_better", "truncate_turns",
         "summarize", "restore_turns", "answer_failed", "read_whole", "retry")  # fmt: skip


def copied(store: Store, folder: Path) -> Store:
    """Another store over what this one wrote, which has read nothing yet."""
    folder.mkdir()
    with store._database.read() as connection:
        target = sqlite3.connect(folder / FILE_NAME)
        connection.backup(target)
        target.close()
    return Store(folder)


class Person(RuleBasedStateMachine):
    """Does to two chats whatever can be done, while somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder / "kept")
        self.known = KnownChats(self.store)
        self.chats = [self.store.new_chat("", "").id for _ in range(2)]
        self.store.attach_document(self.chats[0], "d", "d.pdf")
        self.num = 0

    def teardown(self) -> None:
        self.store.close()

    def questions(self, chat: str) -> list[str]:
        return [one.hash for one in self.store.messages(chat) if one.role == "user"]

    def one_of(self, chat: str, place: int) -> str | None:
        names = self.questions(chat)
        return names[place % len(names)] if names else None

    def answered(self, chat: str, text: str) -> None:
        newest = self.store.messages(chat)[-1].hash
        self.store.start_draft(chat, newest)
        self.num += 1
        made = Generation("", (), "stop", {"prefill_s": self.num}, [], "m", 1.0)
        self.store.finish_draft(chat, text, made)

    @rule(which=st.integers(0, 1), text=WORDS, reply=WORDS, brings=st.booleans())
    def ask(self, which: int, text: str, reply: str, brings: bool) -> None:
        chat = self.chats[which]
        brought = [Attachment("d", "d.pdf", "passages", (1,), text)] if brings else []
        self.store.append(chat, "user", text, brought)
        self.answered(chat, reply)

    @rule(which=st.integers(0, 1), text=WORDS)
    def ask_in_vain(self, which: int, text: str) -> None:
        self.store.append(self.chats[which], "user", text)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9), text=WORDS, reply=WORDS)
    def edit(self, which: int, place: int, text: str, reply: str) -> None:
        chat, question = self.chats[which], self.one_of(self.chats[which], place)
        if question is not None:
            there = next(one for one in self.store.messages(chat) if one.hash == question)
            self.store.fork(chat, there.parent)
            self.store.append(chat, "user", text)
            self.answered(chat, reply)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9), text=WORDS)
    def edit_and_go_back(self, which: int, place: int, text: str) -> None:
        """What is shown is as before, but for its number of versions."""
        chat, question = self.chats[which], self.one_of(self.chats[which], place)
        if question is not None:
            tip = self.store.messages(chat)[-1].hash
            self.edit(which, place, text, text)
            self.store.switch(chat, tip)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9))
    def measure_again(self, which: int, place: int) -> None:
        replies = [one for one in self.store.messages(self.chats[which]) if one.role != "user"]
        if replies:
            self.num += 1
            name = replies[place % len(replies)].hash
            made = Generation(name, (), "length", {"prefill_s": self.num}, [], "m", 1.0)
            self.store.add_generation(self.chats[which], made)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9), reply=WORDS)
    def regenerate(self, which: int, place: int, reply: str) -> None:
        chat, question = self.chats[which], self.one_of(self.chats[which], place)
        if question is not None:
            self.store.fork(chat, question)
            self.answered(chat, reply)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9))
    def delete(self, which: int, place: int) -> None:
        question = self.one_of(self.chats[which], place)
        if question is not None:
            self.store.delete_turn(self.chats[which], question)

    @rule(which=st.integers(0, 1), place=st.integers(0, 9), version=st.integers(0, 3))
    def switch(self, which: int, place: int, version: int) -> None:
        chat, question = self.chats[which], self.one_of(self.chats[which], place)
        if question is not None:
            versions = self.store.siblings(chat, question)
            replies = self.store.replies(chat, versions[version % len(versions)])
            self.store.switch(chat, (replies or versions)[-1])

    @rule(which=st.integers(0, 1), place=st.integers(0, 9), pinned=st.booleans())
    def pin(self, which: int, place: int, pinned: bool) -> None:
        question = self.one_of(self.chats[which], place)
        if question is not None:
            (self.store.pin if pinned else self.store.unpin)(self.chats[which], question)

    @rule(page=st.sampled_from((None, 1)), pinned=st.booleans())
    def pin_document(self, page: int | None, pinned: bool) -> None:
        do = self.store.pin_document if pinned else self.store.unpin_document
        do(self.chats[0], "d", page)

    @rule(which=st.integers(0, 1), code=st.sampled_from(CODES), places=st.sets(st.integers(0, 9)))
    def take(self, which: int, code: str, places: set[int]) -> None:
        chat = self.chats[which]
        names = dict.fromkeys(self.one_of(chat, place) for place in sorted(places))
        turns = tuple(name for name in names if name is not None)
        about = {"formats": "int8", "document": "d", "error": {"code": "x", "facts": {}}}
        undo = "bring_back" if code == "offload" else "read_again"
        row = entry(code, about, "no_room", 0, None, turns, undo=undo)
        question = self.questions(chat)[-1:]
        self.store.add_ledger(chat, **row, question=question[0] if question else None)

    @rule(which=st.integers(0, 1), place=st.integers(0, 20), places=st.sets(st.integers(0, 9)))
    def grow(self, which: int, place: int, places: set[int]) -> None:
        chat = self.chats[which]
        rows = self.store.ledger(chat)
        if rows:
            row = rows[place % len(rows)]
            turns = dict.fromkeys((*row.turns, *self.questions(chat)[: len(places)]))
            about = row.arguments | {"tokens": len(places)}
            self.store.grow_ledger(
                row.number, about, tuple(turns), bytes_predicted=1, bytes_measured=2,
                documents=(), before=None, after=None, lost_tokens=3,
            )  # fmt: skip

    @rule(which=st.integers(0, 1))
    def undo(self, which: int) -> None:
        chat = self.chats[which]
        for number in self.known.of(chat).offered[:1]:
            row = next(one for one in self.store.ledger(chat) if one.number == number)
            about = {"entry": number, "code": row.code}
            asked = entry("undo", about, "asked", 0, None, row.turns)
            self.store.add_ledger(chat, **asked, question=self.questions(chat)[-1])

    @rule(which=st.integers(0, 1))
    def summarize(self, which: int) -> None:
        chat = self.chats[which]
        covered = [one.hash for one in self.store.messages(chat)][:2]
        self.store.keep_summary(chat, Summary(summary_name(covered), len(covered), "in short"))

    @rule(which=st.integers(0, 1))
    def begin_anew(self, which: int) -> None:
        self.store.delete(self.chats[which])
        self.chats[which] = self.store.new_chat("", "").id

    @invariant()
    def the_same_as_all_of_it(self) -> None:
        """As it is read by who read nothing before."""
        for chat in self.chats:
            messages, rows = self.store.messages(chat), self.store.ledger(chat)
            with self.store._database.read() as connection:
                _, tip = tree.current_branch(connection, chat)
                assert messages == tree.chain(connection, tip)
                assert rows == entries(connection, "chat = ?", (chat,))
            assert said(self.known.of(chat)) == said(KnownChats(self.store).of(chat))


def said(known: Known) -> dict[str, Any]:
    """All but how far it was read."""
    there = replace(known, version=(0, None), seen=None)  # type: ignore[arg-type]
    return {one.name: getattr(there, one.name) for one in fields(there)}


TestPerson = Person.TestCase
TestPerson.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


def talk(store: Store, num_turns: int) -> str:
    chat = store.new_chat("", "").id
    for number in range(num_turns):
        store.append(chat, "user", f"question {number}")
        store.append(chat, "assistant", f"reply {number}")
    return chat


def test_another_version_counts_where_the_shown_one_stays(store: Store) -> None:
    chat, known = talk(store, 3), KnownChats(store)
    before = store.messages(chat)
    assert [one.num_siblings for one in known.of(chat).exchanges] == [1, 1, 1]
    store.fork(chat, before[2].parent)
    store.append(chat, "user", "another question")
    store.switch(chat, before[-1].hash)
    assert [one.num_siblings for one in known.of(chat).exchanges] == [1, 2, 1]
    store.fork(chat, before[4].hash)
    store.append(chat, "assistant", "another reply")
    store.switch(chat, before[-1].hash)
    assert [one.num_siblings for one in known.of(chat).exchanges] == [1, 2, 2]


def test_newer_figures_are_shown(store: Store) -> None:
    chat, known = talk(store, 2), KnownChats(store)
    reply = store.messages(chat)[1].hash
    for seconds in (1.0, 2.0):
        figures = {"prefill_s": seconds}
        store.add_generation(chat, Generation(reply, (), "stop", figures, [], "m", 1.0))
        shown = known.of(chat)
        assert shown.exchanges[0].figures == figures
        assert shown.figures(shown.exchanges[0].user_hash)["prefill_s"] == seconds


def test_after_a_deletion_everything_is_read_under_its_new_name(
    store: Store, tmp_path: Path
) -> None:
    """What came after is renamed; of the same words said again only now, too."""
    chat, known = talk(store, 4), KnownChats(store)
    names = [one.hash for one in store.messages(chat) if one.role == "user"]
    row = entry("evict", {}, "no_room", 0, None, (names[1], names[3]), undo="read_again")
    store.add_ledger(chat, **row, question=names[3])
    assert [one.evicted for one in known.of(chat).exchanges] == [False, True, False, True]
    store.delete_turn(chat, names[0])
    assert [one.evicted for one in known.of(chat).exchanges] == [True, False, True]
    assert not {*names} & {one.user_hash for one in known.of(chat).exchanges}
    newest = known.of(chat).exchanges[-1].user_hash
    store.delete_turn(chat, newest)
    store.append(chat, "user", "question 3")
    with copied(store, tmp_path / "copy") as other:
        assert store.messages(chat) == other.messages(chat)
        assert store.ledger(chat) == other.ledger(chat)
        assert said(known.of(chat)) == said(KnownChats(other).of(chat))


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "kept") as store:
        yield store


def test_a_turn_more_reads_a_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the chat is: statements for the newest turn are few, and as many each time."""
    chat = store.new_chat("", "").id
    known = KnownChats(store)
    statements: list[str] = []
    store._database._connection.set_trace_callback(statements.append)
    counts = []
    for number in range(60):
        question = store.append(chat, "user", f"question {number}")
        store.start_draft(chat, question.hash)
        made = Generation("", (), "stop", {}, [], "m", 1.0)
        store.finish_draft(chat, f"reply {number}", made)
        row = entry("requantize", {"formats": "int8"}, "no_room", 0, 1, (question.hash,))
        store.add_ledger(chat, **row, question=question.hash)
        statements.clear()
        assert len(known.of(chat).exchanges) == number + 1
        counts.append(len(statements))
    assert len(set(counts[5:])) == 1
    assert counts[-1] < 30


def test_turns_that_did_not_change_are_the_same_objects(store: Store) -> None:
    chat = store.new_chat("", "").id
    known = KnownChats(store)
    for number in range(5):
        store.append(chat, "user", f"{number}")
        store.append(chat, "assistant", "r")
    before = known.of(chat)
    store.pin(chat, before.exchanges[2].user_hash)
    after = known.of(chat)
    same = [a is b for a, b in zip(before.exchanges, after.exchanges, strict=True)]
    assert same == [True, True, False, True, True]


def test_from_nothing_known_all_is_read(store: Store) -> None:
    chat = store.new_chat("", "").id
    store.append(chat, "user", "a")
    version = store.version(chat)
    read: Callable[..., Known] = read_on
    assert said(read(store, chat, version, None)) == said(KnownChats(store).of(chat))
