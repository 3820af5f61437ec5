"""A question while pages of its document are still being recognised: what there is is used, and
nothing is decided before the rest is there.
"""

import threading
import time

import pytest

from kvchat.chat.attached import attached
from kvchat.chat.bring import Room, decide
from kvchat.chat.shelf import Shelf
from kvchat.documents.recognise import Recognised
from kvchat.settings import Settings
from kvchat.store.store import Store
from tests.documents.small_pdf import write_pdf

WORDS = "a page of a document with words enough to be read"


class HeldTesseract:
    """Reads a page when it is let."""

    program, languages, used = "t", ("eng",), ("eng",)

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def read(self, png, cancel=None):
        assert png.startswith(b"\x89PNG")
        self.begun.set()
        assert self.go_on.wait(60)
        return Recognised("recognised words", (("recognised", 0.1, 0.1, 0.2, 0.2),), 88)


@pytest.fixture
def held():
    return HeldTesseract()


@pytest.fixture
def shelf(tmp_path, held):
    store = Store(tmp_path / "data")
    found = Shelf(store, tmp_path / "data" / "documents", tesseract=lambda: held)
    found.tokens.use(lambda text: len(text.split()))
    yield found
    held.go_on.set()
    found.close()
    store.close()


def test_what_there_is_is_used_and_nothing_is_decided_before_the_rest_is_there(
    shelf, held, tmp_path
):
    store = shelf._store
    chat = store.new_chat("", "").id
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)], [(72, 700, "7")]], picture=True)
    sha = shelf.add(chat, path, "a.pdf")
    assert held.begun.wait(60)
    document = shelf.wait(sha, "a.pdf", until_s=time.monotonic())
    assert [page.verdict for page in document.pages] == ["text", "scan"]
    assert not shelf.is_complete(sha)
    row = shelf.row(sha, "a.pdf")
    assert (row["num_recognised"], row["num_to_recognise"], row["notes"]) == (0, 1, [])

    def decided():
        there = attached(store, chat)
        [one] = decide(there, there.documents, shelf, Settings(), Room(100_000, 10))
        return one.mode, one.reason

    assert decided() == ("passages", None)
    held.go_on.set()
    shelf.reading(sha, "a.pdf").recognising.result(60)
    assert shelf.is_complete(sha)
    assert shelf.wait(sha, "a.pdf").pages[1].text == "recognised words"
    assert decided() == ("whole", "fits")


def test_a_question_waits_for_the_first_page_that_has_text(shelf, held, tmp_path):
    chat = shelf._store.new_chat("", "").id
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, "7")]], picture=True)
    sha = shelf.add(chat, path, "a.pdf")
    assert held.begun.wait(60)
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    assert shelf.wait(sha, "a.pdf", cancel) is None
    held.go_on.set()
    assert shelf.wait(sha, "a.pdf").pages[0].verdict == "ocr"


def test_a_document_that_is_taken_out_is_recognised_no_further(shelf, held, tmp_path):
    store = shelf._store
    chat = store.new_chat("", "").id
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, "7")]] * 3, picture=True)
    sha = shelf.add(chat, path, "a.pdf")
    assert held.begun.wait(60)
    running = shelf.reading(sha, "a.pdf").recognising
    store.detach(chat, sha)
    shelf.drop_unused([sha])
    held.go_on.set()
    running.result(60)
    assert store.document(sha) is None
    assert store.page_words(sha, 1) == []
