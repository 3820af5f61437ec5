"""Documents with their pages, and which chat has which."""

import unicodedata

import pytest

from kvchat.store.records import DocumentFile
from kvchat.store.store import Attachment, ChatDocument, DocumentPage, Store

PAGES = [
    DocumentPage(1, "i", "text", "첫 쪽", {"num_hidden": 3}),
    DocumentPage(2, None, "scan", ""),
    DocumentPage(3, "1", "text", "third\x00page"),
]


def test_a_document_comes_back_with_its_pages(store: Store) -> None:
    file = DocumentFile(
        "sha", "이름.html", "/somewhere/sha.file", "html", 7, ("안의 파일.xlsx",), True
    )
    store.add_document(file, PAGES)
    found = store.document("sha")
    assert found is not None
    assert found.file == file
    assert found.pages == tuple(PAGES)
    assert store.documents() == [found]
    assert store.document("other") is None


def test_a_second_reading_replaces_the_first(store: Store) -> None:
    store.add_document(DocumentFile("sha", "a.pdf", "p"), PAGES)
    store.add_document(DocumentFile("sha", "b.pdf", "p"), PAGES[:1])
    found = store.document("sha")
    assert found is not None
    assert (found.name, len(found.pages)) == ("b.pdf", 1)


def test_before_the_first_message_a_document_leads(store: Store) -> None:
    chat = store.new_chat("", "").id
    store.attach_document(chat, "one", "1.pdf")
    store.attach_document(chat, "two", "2.pdf")
    question = store.append(chat, "user", "q", [Attachment("three", "3.pdf", "whole", (), "t")])
    made = store.attach_document(chat, "three", "3.pdf")
    assert made == ChatDocument("three", "3.pdf", False, question.hash)
    store.append(chat, "user", "q2", [Attachment("one", "1.pdf", "passages", (4,), "p")])
    assert [(d.document, d.leading, d.turn is None) for d in store.chat_documents(chat)] == [
        ("one", True, False),
        ("two", True, True),
        ("three", False, False),
    ]
    assert store.chat(chat).documents == ("one", "two")


def test_the_turn_of_a_document_is_that_of_the_branch_shown(store: Store) -> None:
    chat = store.new_chat("", "").id
    first = store.append(chat, "user", "q1")
    brought = [Attachment("d", "d.pdf", "whole", (), "text")]
    second = store.append(chat, "user", "q2", brought)
    store.attach_document(chat, "d", "d.pdf")
    assert store.chat_documents(chat)[0].turn == second.hash
    store.delete_turn(chat, first.hash)
    [message] = store.messages(chat)
    assert store.chat_documents(chat)[0].turn == message.hash
    store.fork(chat, None)
    assert store.chat_documents(chat)[0].turn is None


def test_attaching_again_changes_nothing(store: Store) -> None:
    chat = store.new_chat("", "").id
    made = store.attach_document(chat, "d", "first.pdf")
    assert store.attach_document(chat, "d", "second.pdf") == made
    store.detach(chat, "d")
    assert store.chat_documents(chat) == []


def test_only_what_nothing_names_is_removed(store: Store) -> None:
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    for sha in ("attached", "brought", "free"):
        store.add_document(DocumentFile(sha, f"{sha}.pdf", f"/{sha}"), PAGES)
    store.attach_document(chat, "attached", "attached.pdf")
    store.append(other, "user", "q", [Attachment("brought", "b.pdf", "whole", (), "text")])
    assert [(one.sha, one.file.path) for one in store.remove_unreferenced()] == [("free", "/free")]
    store.delete(other)
    store.detach(chat, "attached")
    assert {one.sha for one in store.remove_unreferenced()} == {"attached", "brought"}
    assert store.documents() == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_are_kept_to_the_letter(store: Store, form: str) -> None:
    name = unicodedata.normalize(form, "회의 '록' <b>.pdf")  # type: ignore[arg-type]
    store.add_document(DocumentFile("sha", name, "p"), [])
    found = store.document("sha")
    assert found is not None
    assert found.name == name


def test_a_recognised_page_takes_the_place_of_its_picture(store: Store) -> None:
    store.add_document(DocumentFile("sha", "a.pdf", "p"), PAGES)
    page = DocumentPage(2, None, "ocr", "읽은 글", {"confidence": 91})
    words = [["읽은", 0.1, 0.2, 0.3, 0.25], ["글", 0.35, 0.2, 0.4, 0.25]]
    store.replace_page("sha", page, words)
    found = store.document("sha")
    assert found is not None
    assert found.pages[1] == page
    assert store.page_words("sha", 2) == words
    assert store.page_words("sha", 1) == []
    store.add_document(DocumentFile("sha", "a.pdf", "p"), PAGES)  # read anew
    assert store.page_words("sha", 2) == []
    store.replace_page("gone", page, words)
    assert store.document("gone") is None
