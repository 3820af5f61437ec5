"""Summaries of a chat: kept by name, gone with what they tell of."""

import pytest

from kvchat.errors import StoreError
from kvchat.store.records import Summary
from kvchat.store.store import Store


def test_the_one_of_most_messages_comes_first(store: Store) -> None:
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    for one in (Summary("a", 2, "short"), Summary("b", 6, "long \ud800"), Summary("a", 2, "new")):
        store.keep_summary(chat, one)
    assert list(store.summaries(chat).values()) == [
        Summary("b", 6, "long \ufffd"),
        Summary("a", 2, "new"),
    ]
    assert store.summaries(other) == {}


def test_they_go_with_a_deleted_turn_and_with_the_chat(store: Store) -> None:
    chat = store.new_chat("", "").id
    question = store.append(chat, "user", "q")
    store.keep_summary(chat, Summary("a", 2, "it tells of q"))
    store.delete_turn(chat, question.hash)
    assert store.summaries(chat) == {}
    store.keep_summary(chat, Summary("a", 2, "x"))
    store.delete(chat)
    assert store.summaries(chat) == {}
    with pytest.raises(StoreError):
        store.keep_summary(chat, Summary("a", 2, "x"))
