"""Indexes made before there is a question, and made anew once the text is another."""

import threading
from collections.abc import Iterator

import pytest

from kvchat.chat import indexing
from kvchat.chat.counting import TokenCounts
from kvchat.chat.indexing import Indexes
from kvchat.documents.pages import ReadDocument
from kvchat.documents.retrieve import Index
from tests.documents.made import document

SHA, ALL = "a" * 64, frozenset[int]()


class Shelf:
    """One document, whose text may become another; `made` counts indexes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text = "The pump runs at night."
        self.may_make, self.made, self.begun = threading.Event(), 0, threading.Event()
        self.tokens = TokenCounts()
        self.tokens.use(len)
        self.indexes = Indexes(self.tokens, self.document)

        def counted(passages: tuple[object, ...]) -> Index:
            self.begun.set()
            assert self.may_make.wait(60)
            self.made += 1
            return Index(passages)

        monkeypatch.setattr(indexing, "Index", counted)

    def document(self, _sha: str) -> ReadDocument:
        return document(self.text)

    def texts(self, asked: str) -> list[str]:
        found = self.indexes.index(((SHA, ALL),))
        return [one.passage.text for one in found.search(asked, 5)]


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    shelf = Shelf(monkeypatch)
    yield shelf
    shelf.may_make.set()
    shelf.indexes.close()
    shelf.tokens.close()


def test_a_question_takes_the_index_that_is_being_made(shelf: Shelf) -> None:
    shelf.indexes.begin(SHA)
    shelf.indexes.begin(SHA)
    assert shelf.begun.wait(60)
    threading.Timer(0.05, shelf.may_make.set).start()
    assert shelf.texts("When does the pump run?") == [shelf.text]
    assert shelf.made == 1


def test_what_is_made_of_old_text_meanwhile_is_not_found(shelf: Shelf) -> None:
    shelf.indexes.begin(SHA)
    assert shelf.begun.wait(60)
    shelf.text = "The lamp is green."
    shelf.indexes.forget()
    shelf.may_make.set()
    assert shelf.texts("Which lamp is green?") == [shelf.text]
    assert shelf.texts("When does the pump run?") == []
