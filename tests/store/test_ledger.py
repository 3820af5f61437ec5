"""The ledger, pins and saved settings."""

import sqlite3

import pytest

from kvchat.errors import StoreError
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
    )
    assert store.ledger(chat) == [made]


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


def test_pins(store: Store) -> None:
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    question = store.append(chat, "user", "q")
    store.append(other, "user", "q")
    store.pin(chat, question.hash)
    store.pin(chat, question.hash)
    assert store.pins(chat) == {question.hash}
    assert store.pins(other) == frozenset()
    store.unpin(chat, question.hash)
    assert store.pins(chat) == frozenset()


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
