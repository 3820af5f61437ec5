"""What the screen may ask about documents, over real ones: locked, renamed, of the library."""

import time

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.settings import Settings
from kvchat.ui import calls as screen_calls
from kvchat.ui.following import Following
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf

WORDS = "a page of a document with words enough"


@pytest.fixture
def talks(tmp_path):
    found = Conversations(Settings(model=str(tmp_path / "no model")), tmp_path / "data")
    yield found
    found.close()


@pytest.fixture
def call(talks):
    found = {one.__name__: one for one in screen_calls.calls(talks, Following(talks, "ko"), "ko")}

    def named(called, /, **sent):
        return found[called](sent)

    return named


@pytest.fixture
def chat(talks):
    return talks.new_chat()


def row_of(call, chat):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (row,) = call("documents", chat=chat)["documents"]
        if row["is_complete"]:
            return row
        time.sleep(0.02)
    raise AssertionError("still being read")


def test_a_locked_document_asks_and_opens(talks, call, chat, tmp_path):
    path = lock(write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]]), "비밀 1")
    document = talks.add_document(chat, path, "a.pdf")
    row = row_of(call, chat)
    assert row["asks_password"]
    assert "암호" in row["problem"]["message"]
    assert call("unlock_document", chat=chat, document=document, password="x") == {}
    row = row_of(call, chat)
    assert row["asks_password"]
    assert "맞지 않습니다" in row["problem"]["message"]
    call("unlock_document", chat=chat, document=document, password="비밀 1")
    row = row_of(call, chat)
    assert (row["asks_password"], row["problem"], row["num_pages"]) == (False, None, 1)
    [page] = call("document_pages", chat=chat, document=document)["pages"]
    assert (page["number"], page["verdict"], page["order"]) == (1, "text", None)


def test_documents_of_the_library_come_into_other_chats_and_go_for_good(
    talks, call, chat, tmp_path
):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]])
    document = talks.add_document(chat, path, "a.pdf")
    row_of(call, chat)
    other = call("attach_document", chat=None, document=document)["chat"]
    assert other != chat
    assert call("rename_document", document=document, name=" <b>새 이름 ")["name"] == "<b>새 이름"
    assert row_of(call, other)["name"] == "<b>새 이름"
    (kept,) = call("library")["documents"]
    assert (kept["sha"], set(kept["chats"])) == (document, {chat, other})
    assert call("forget_document", document=document) == {}
    assert call("library")["documents"] == []
    assert call("documents", chat=chat)["documents"] == []


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("unlock_document", {"password": ""}),
        ("unlock_document", {"password": "x"}),
        ("unlock_document", {"password": 7}),
        ("document_pages", {}),
        ("attach_document", {}),
        ("rename_document", {"name": "b"}),
        ("rename_document", {"name": " "}),
        ("forget_document", {}),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(call, chat, name, sent):
    found = call(name, chat=chat, document="0" * 64, **sent)
    assert found["error"]["message"]
    assert "{" not in found["error"]["message"]


@pytest.mark.parametrize("name", ["remove_document", "forget_document", "unlock_document"])
def test_a_path_in_a_documents_place_touches_no_file(talks, call, chat, tmp_path, name):
    """Case C31: nothing that a page sends becomes a path."""
    talks.add_document(chat, write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]]), "a.pdf")
    row_of(call, chat)  # the folder of documents is there now
    precious = tmp_path / "precious.pdf"
    precious.write_bytes(b"%PDF-1.7 kept")
    for document in ("../../precious", str(tmp_path / "precious"), "../documents/../../precious"):
        call(name, chat=chat, document=document, password="x")
        assert precious.read_bytes() == b"%PDF-1.7 kept"
