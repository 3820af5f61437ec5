"""Pins of turns, documents and pages, and what they go with."""

import sqlite3
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.store.schema import MIGRATIONS
from kvchat.store.store import Store


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


def test_documents_and_pages(store: Store) -> None:
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    for one in (chat, other):
        store.attach_document(one, "d", "d.pdf")
        store.attach_document(one, "e", "e.pdf")
    for page in (7, 2, 7):
        store.pin_document(chat, "d", page)
    store.pin_document(chat, "e")
    store.pin_document(chat, "e")
    assert store.document_pins(chat) == {"d": {2, 7}, "e": None}
    assert store.document_pins(other) == {}
    store.pin_document(chat, "d")
    assert store.document_pins(chat)["d"] is None  # all of it, whatever pages
    store.unpin_document(chat, "d")
    assert store.document_pins(chat)["d"] == {2, 7}
    store.unpin_document(chat, "d", 7)
    assert store.document_pins(chat) == {"d": {2}, "e": None}
    store.pin_document(chat, "of another chat", 1)
    assert store.document_pins(chat).keys() == {"d", "e"}


def test_a_pin_goes_with_its_document_and_its_chat(store: Store) -> None:
    chat = store.new_chat("", "").id
    store.attach_document(chat, "d", "d.pdf")
    store.pin_document(chat, "d", 3)
    store.detach(chat, "d")
    assert store.document_pins(chat) == {}
    store.attach_document(chat, "d", "d.pdf")
    assert store.document_pins(chat) == {}
    store.pin_document(chat, "d")
    store.delete(chat)
    with pytest.raises(StoreError):
        store.pin(chat, "q")


def test_pins_of_an_earlier_version_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvchat.store.schema.MIGRATIONS", MIGRATIONS[:2])
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
        turn = store.append(chat, "user", "a").hash
        with store._database.write() as connection:
            for _ in range(2):  # it could be written twice
                connection.execute("INSERT INTO pins VALUES (?, ?)", (chat, turn))
    monkeypatch.undo()
    with Store(tmp_path) as store:
        assert store.pins(chat) == {turn}
        with store._database.read() as connection:
            assert connection.execute("SELECT count(*) FROM pins").fetchone()[0] == 1
        with pytest.raises(sqlite3.IntegrityError), store._database.write() as connection:
            connection.execute("INSERT INTO document_pins VALUES (?, 'no document', NULL)", (chat,))
        assert store.verify() == []
