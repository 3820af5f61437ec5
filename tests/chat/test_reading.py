"""Documents of the data folder while they are read, read anew, renamed and forgotten."""

import threading
import time
from dataclasses import replace

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.documents import reader
from kvchat.errors import DocumentError, RequestError
from kvchat.settings import Settings
from tests.documents.small_pdf import write_pdf

WORDS = "a page of a document with words enough"


@pytest.fixture
def opened(tmp_path):
    talks = []

    def open_again():
        for one in talks:
            one.close()
        settings = Settings(model=str(tmp_path / "no model"))
        talks[:] = [Conversations(settings, tmp_path / "data")]
        return talks[0]

    yield open_again
    talks[0].close()


def test_the_first_pages_are_there_before_the_last_is_read(opened, tmp_path, monkeypatch):
    talks = opened()
    chat = talks.new_chat()
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, f"{WORDS} {n}")] for n in range(200)])
    held, go_on = threading.Event(), threading.Event()
    real = reader.read

    def held_after_forty(*args, on_page, **more):
        def held_back(page, of):
            on_page(page, of)
            if page.number == 40:
                held.set()
                assert go_on.wait(60)

        return real(*args, on_page=held_back, **more)

    monkeypatch.setattr("kvchat.chat.reading.reader.read", held_after_forty)
    sha = talks.add_document(chat, path, "a.pdf")
    assert held.wait(60)
    try:
        (row,) = talks.documents(chat)
        assert (row.pages_done, row.num_pages, row.is_complete) == (40, 200, False)
        pages = talks.library.pages(chat, sha)
        assert [page["number"] for page in pages] == list(range(1, 41))
        assert talks._shelf.so_far(sha, "a.pdf").num_missing == 160
        assert talks._shelf.so_far(sha, "a.pdf").pages[39].text == f"{WORDS} 39"
    finally:
        go_on.set()
    (row,) = talks.wait_documents(chat)
    assert (row.pages_done, row.num_pages, row.is_complete) == (200, 200, True)


def test_reading_is_cancelled_with_the_last_chat_that_wanted_it(opened, tmp_path):
    talks = opened()
    chat = talks.new_chat()
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]] * 3000)
    sha = talks.add_document(chat, path, "a.pdf")
    talks.remove_document(chat, sha)
    deadline = time.monotonic() + 30
    while list((tmp_path / "data" / "documents").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((tmp_path / "data" / "documents").iterdir()) == []
    assert talks._store.document(sha) is None


def test_a_document_is_read_again_once_the_reader_is_another(opened, tmp_path, monkeypatch):
    talks = opened()
    chat = talks.new_chat()
    sha = talks.add_document(chat, write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]]), "a.pdf")
    talks.wait_documents(chat)
    monkeypatch.setattr(reader, "EXTRACTOR", reader.EXTRACTOR + 1)
    real = reader.clean_name

    def other_reader(*args, **more):
        found = real_read(*args, **more)
        pages = tuple(replace(page, text=page.text.upper()) for page in found.pages)
        return reader.ReadDocument(found.sha256, real(found.name), pages)

    real_read = reader.read
    monkeypatch.setattr("kvchat.chat.reading.reader.read", other_reader)
    talks = opened()
    (row,) = talks.wait_documents(chat)
    assert row.problem is None
    assert talks._shelf.document(sha).pages[0].text == WORDS.upper()
    assert talks._store.document(sha).file.extractor == reader.EXTRACTOR


def test_what_an_older_reader_read_stays_where_the_newer_one_fails(opened, tmp_path, monkeypatch):
    talks = opened()
    chat = talks.new_chat()
    sha = talks.add_document(chat, write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]]), "a.pdf")
    talks.wait_documents(chat)
    monkeypatch.setattr(reader, "EXTRACTOR", reader.EXTRACTOR + 1)

    def fails(*_args, **_more):
        raise DocumentError("document_damaged", name="a.pdf")

    monkeypatch.setattr("kvchat.chat.reading.reader.read", fails)
    talks = opened()
    (row,) = talks.wait_documents(chat)
    assert (row.problem, row.num_pages) == (None, 1)
    assert talks._shelf.document(sha).pages[0].text == WORDS


def test_a_document_is_renamed_put_into_other_chats_and_forgotten(opened, tmp_path):
    talks = opened()
    chat, other = talks.new_chat(), talks.new_chat()
    sha = talks.add_document(chat, write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]]), "a.pdf")
    talks.wait_documents(chat)
    talks.library.attach(other, sha)
    assert talks.library.rename(sha, "../새\n이름.pdf") == "새 이름.pdf"
    assert [row.name for row in talks.documents(other)] == ["새 이름.pdf"]
    assert talks._shelf.document(sha).name == "새 이름.pdf"
    (kept,) = talks.library.documents()
    assert set(kept.chats) == {chat, other}
    talks.library.forget(sha)
    assert talks.documents(chat) == talks.documents(other) == []
    assert talks.library.documents() == []
    assert list((tmp_path / "data" / "documents").iterdir()) == []
    for call in (
        lambda: talks.library.forget(sha),
        lambda: talks.library.rename(sha, "b"),
        lambda: talks.library.attach(chat, sha),
        lambda: talks.library.pages(chat, sha),
    ):
        with pytest.raises(RequestError):
            call()


def test_a_name_must_have_a_letter(opened, tmp_path):
    talks = opened()
    with pytest.raises(RequestError):
        talks.library.rename("0" * 64, "  ")


def test_the_same_file_twice_is_one_and_other_kinds_are_documents_too(opened, tmp_path):
    talks = opened()
    chat = talks.new_chat()
    notes = tmp_path / "notes.md"
    notes.write_text("# Heading\n\nwords below it\n")
    sha = talks.add_document(chat, notes, "notes.md")
    assert talks.add_document(chat, notes, "notes.md") == sha
    (row,) = talks.wait_documents(chat)
    assert (row.name, row.kind, row.problem) == ("notes.md", "markdown", None)
    assert row.notes == []  # one part needs no division
    with pytest.raises(DocumentError) as caught:
        talks.page_image(sha, 1)
    assert caught.value.code == "document_no_picture"
    talks = opened()
    (row,) = talks.wait_documents(chat)
    assert row.kind == "markdown"
    assert [file.suffix for file in (tmp_path / "data" / "documents").iterdir()] == [".file"]


def held_back(monkeypatch, number):
    """Reads up to that page, and goes on when it is let."""
    there, go_on = threading.Event(), threading.Event()
    real = reader.read

    def read(*args, on_page, **more):
        def told(page, of):
            on_page(page, of)
            if page.number == number:
                there.set()
                assert go_on.wait(60)

        return real(*args, on_page=told, **more)

    monkeypatch.setattr("kvchat.chat.reading.reader.read", read)
    return there, go_on


def test_closing_waits_for_what_is_being_read(tmp_path):
    talks = Conversations(Settings(model=str(tmp_path / "no model")), tmp_path / "data")
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]] * 3000)
    talks.add_document(talks.new_chat(), path, "a.pdf")
    talks.close()
    left = [one.name for one in threading.enumerate() if one.name.startswith("kvchat-")]
    assert not [name for name in left if name.startswith(("kvchat-read", "kvchat-recog"))]
    assert not [name for name in left if name.startswith(("kvchat-ahead", "kvchat-count"))]


def test_a_page_is_counted_once_whoever_asks(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("kvchat.chat.counting.LONG_CHARACTERS", 100)
    talks = opened()
    chat = talks.new_chat()
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, f"{WORDS} {n}")] for n in range(9)])
    sha = talks.add_document(chat, path, "a.pdf")
    talks.wait_documents(chat)
    counted = []
    talks._shelf.tokens.use(lambda text: counted.append(text) or len(text.split()))
    whole = talks._shelf.num_tokens(sha)
    rows = talks._shelf.page_rows(sha, "a.pdf")
    talks._shelf.passages(sha)
    assert len([text for text in counted if WORDS in text]) == 9
    assert whole > sum(row["num_tokens"] for row in rows) > 9 * len(WORDS.split())
