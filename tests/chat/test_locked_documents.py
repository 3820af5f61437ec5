"""A locked document in a chat: it asks, is opened, and its password is nowhere on the disk."""

import contextlib
import logging
import time

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.errors import DocumentError, RequestError
from kvchat.settings import Settings
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf

PASSWORD = "비밀번호 열려라"


@pytest.fixture
def opened(tmp_path):
    talks: list[Conversations] = []

    def open_again():
        for one in talks:
            one.close()
        settings = Settings(model=str(tmp_path / "no model"))
        talks[:] = [Conversations(settings, tmp_path / "data")]
        return talks[0]

    yield open_again
    talks[0].close()


def test_a_password_opens_a_document_and_is_not_kept(opened, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    talks = opened()
    chat = talks.new_chat()
    plain = write_pdf(tmp_path / "a.pdf", [[(72, 700, "the text of a locked document")]])
    document = talks.add_document(chat, lock(plain, PASSWORD), "잠긴.pdf")
    (row,) = talks.wait_documents(chat)
    assert row.asks_password
    assert row.problem["code"] == "document_encrypted"

    talks.library.unlock(chat, document, "wrong")
    (row,) = talks.wait_documents(chat)
    assert (row.asks_password, row.problem["code"]) == (True, "document_password")

    talks.library.unlock(chat, document, PASSWORD)
    (row,) = talks.wait_documents(chat)
    assert (row.asks_password, row.problem, row.num_pages) == (False, None, 1)
    assert talks.page_image(document, 1).startswith(b"\x89PNG")

    talks = opened()
    (row,) = talks.wait_documents(chat)
    assert row.problem is None
    with pytest.raises(DocumentError) as caught:
        talks.page_image(document, 1)
    assert caught.value.code == "document_picture_locked"
    talks.library.unlock(chat, document, PASSWORD)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(DocumentError):
            talks.page_image(document, 1)
            break
        time.sleep(0.05)
    assert talks.page_image(document, 1).startswith(b"\x89PNG")

    assert PASSWORD not in caplog.text
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes()


def test_only_documents_of_the_chat_can_be_unlocked(opened):
    talks = opened()
    with pytest.raises(RequestError):
        talks.library.unlock(talks.new_chat(), "0" * 64, "x")
