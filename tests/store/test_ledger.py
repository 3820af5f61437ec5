"""The ledger and saved settings."""

import sqlite3
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.planner.ledger import entry, pages, stored
from kvchat.store.database import FILE_NAME
from kvchat.store.ledger import ledger_in
from kvchat.store.schema import MIGRATIONS
from kvchat.store.store import LedgerEntry, Store


def test_an_entry_comes_back_as_it_was_written(store: Store) -> None:
    chat = store.new_chat("", "").id
    turns = [store.append(chat, "user", text).hash for text in ("a", "b")]
    made = store.add_ledger(
        chat,
        "truncate_turns",
        {"turns": [1, 2], "tokens": 700},
        turns[::-1],
        bytes_predicted=2**40,
        bytes_measured=5,
        reason="budget",
        at_s=12.5,
    )
    assert made == LedgerEntry(
        made.number,
        chat,
        12.5,
        "truncate_turns",
        {"turns": [1, 2], "tokens": 700},
        (turns[1], turns[0]),
        2**40,
        5,
        "budget",
        changed=made.number,
    )
    assert store.ledger(chat) == [made]


def test_all_that_the_planner_says_comes_back(store: Store) -> None:
    chat = store.new_chat("", "").id
    first = store.append(chat, "user", "a")
    store.append(chat, "assistant", "r")
    asked = store.append(chat, "user", "b")
    taken = entry(
        "requantize",
        {"formats": "int8/int8"},
        "no_room",
        10,
        9,
        (first.hash,),
        documents=[pages("d", (3, 2, 3)), pages("e")],
        before=stored(("fp/fp", "fp/fp"), "device"),
        after=stored(("int8/int8",), "device"),
        lost_tokens=7,
        undo="read_again",
    )
    made = store.add_ledger(chat, **taken, question=asked.hash)
    assert {name: getattr(made, name) for name in taken} == taken | {
        "turns": (first.hash,),
        "documents": (
            {"document": "d", "pages": [2, 3]},
            {"document": "e", "pages": None},
        ),
    }
    assert made.question == asked.hash
    assert store.add_ledger(chat, "retry", {}, question="of no chat").question is None


def test_what_was_done_outlives_the_question_that_was_answered(store: Store) -> None:
    """It hangs under what stood before it then, so that it is still known on that branch."""
    chat = store.new_chat("", "").id
    first = store.append(chat, "user", "a")
    reply = store.append(chat, "assistant", "r")
    second = store.append(chat, "user", "b")
    store.append(chat, "assistant", "s")
    store.add_ledger(chat, "retry", {}, question=second.hash)
    store.add_ledger(chat, "retry", {}, question=first.hash)
    store.delete_turn(chat, second.hash)
    assert [row.question for row in store.ledger(chat)] == [reply.hash, first.hash]
    store.delete_turn(chat, first.hash)
    assert [row.question for row in store.ledger(chat)] == [None, None]


def test_a_ledger_of_an_earlier_version_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.store.schema.MIGRATIONS", MIGRATIONS[:1])
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
        turn = store.append(chat, "user", "a").hash
        with store._database.write() as connection:
            connection.execute(
                "INSERT INTO ledger VALUES (1, ?, 5.0, 'truncate_turns', '{}', 8, NULL, 'fits')",
                (chat,),
            )
            connection.execute("INSERT INTO ledger_turns VALUES (1, 0, ?)", (turn,))
    monkeypatch.undo()
    assert ledger_in(tmp_path) == []  # only looked at: nothing is brought up to date for that
    with Store(tmp_path) as store:
        (row,) = store.ledger(chat)
        first = LedgerEntry(1, chat, 5.0, "truncate_turns", {}, (turn,), 8, None, "fits", changed=1)
        assert row == first
        assert store.add_ledger(chat, "retry", {}, lost_tokens=3).lost_tokens == 3


def test_a_ledger_is_looked_at_while_it_is_written_and_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert ledger_in(folder) == []
    with Store(folder) as store:
        made = store.add_ledger(None, "retry", {})
        assert ledger_in(folder) == [made]
    before = sorted(one.name for one in folder.iterdir())
    assert ledger_in(folder) == [made]
    assert sorted(one.name for one in folder.iterdir()) == before
    (folder / FILE_NAME).write_bytes(b"no database at all, but long enough to be looked at")
    assert ledger_in(folder) == []


def test_numbers_only_grow_and_can_be_asked_from(store: Store) -> None:
    one, two = store.new_chat("", "").id, store.new_chat("", "").id
    made = [store.add_ledger(chat, "retry", {}) for chat in (one, two, None, one)]
    assert store.ledger(None) == made
    assert store.ledger(one) == [made[0], made[3]]
    assert store.ledger(one, made[0].number) == [made[3]]
    assert store.ledger(None, made[-1].number) == []
    assert [entry.bytes_measured for entry in made] == [None] * 4
    store.delete(one)
    later = store.add_ledger(two, "retry", {})
    assert later.number > made[-1].number
    assert store.ledger(None) == [made[1], made[2], later]


def test_an_entry_that_grew_is_told_again_at_its_place(store: Store) -> None:
    """By its number it is the same; who asked up to a change is told of it as of what is new."""
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    names = [store.append(chat, "user", text).hash for text in ("a", "b")]
    first = store.add_ledger(chat, "requantize", {"tokens": 64}, names[:1], bytes_measured=10)
    second = store.add_ledger(chat, "retry", {})
    third = store.add_ledger(other, "retry", {})
    grew = store.grow_ledger(
        first.number,
        {"tokens": 128},
        names,
        bytes_predicted=9,
        bytes_measured=30,
        documents=[{"document": "d", "pages": None}],
        before={"formats": ["fp/fp"], "tier": "device"},
        after=None,
        lost_tokens=5,
    )
    assert grew is not None
    assert (grew.number, grew.at_s, grew.code) == (first.number, first.at_s, "requantize")
    assert (grew.arguments, grew.turns, grew.lost_tokens) == ({"tokens": 128}, tuple(names), 5)
    assert (grew.bytes_predicted, grew.bytes_measured) == (9, 30)
    assert grew.changed > third.changed
    assert store.ledger(chat) == [grew, second]
    assert store.ledger(chat, second.changed) == [grew]
    assert store.ledger(None, third.changed) == [grew]
    later = store.add_ledger(chat, "retry", {})
    assert later.number == later.changed > grew.changed  # one count for both
    store.delete(chat)
    gone = store.grow_ledger(
        first.number, {}, (), bytes_predicted=0, bytes_measured=None, documents=(),
        before=None, after=None, lost_tokens=0,
    )  # fmt: skip
    assert gone is None
    assert store.ledger(None) == [third]


def test_a_turn_that_is_gone_is_left_out(store: Store) -> None:
    chat = store.new_chat("", "").id
    kept = store.append(chat, "user", "kept")
    store.append(chat, "assistant", "r")
    gone = store.append(chat, "user", "gone")
    store.delete_turn(chat, gone.hash)
    assert store.add_ledger(chat, "refuse", {}, [gone.hash, kept.hash]).turns == (kept.hash,)
    with pytest.raises(StoreError) as caught:
        store.add_ledger("no chat", "refuse", {})
    assert caught.value.code == "chat_gone"


def test_a_write_that_breaks_off_leaves_nothing(store: Store) -> None:
    chat = store.new_chat("", "").id
    with pytest.raises(sqlite3.ProgrammingError):
        store.add_ledger(chat, "retry", {}, [object()])  # type: ignore[list-item]
    assert store.ledger(None) == []
    store.append(chat, "user", "the store goes on")


def test_saved_settings_are_those_saved_last(store: Store) -> None:
    assert store.settings() == {}
    store.save_settings({"temperature": 0.5, "seed": None, "ladder": ("a", "b"), "model": "한국어"})
    assert store.settings() == {
        "temperature": 0.5,
        "seed": None,
        "ladder": ["a", "b"],
        "model": "한국어",
    }
    store.save_settings({"top_k": 3})
    assert store.settings() == {"top_k": 3}
