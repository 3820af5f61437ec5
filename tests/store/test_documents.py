"""Documents with their pages, and which chat has which."""

import unicodedata

import pytest

from kvchat.store.store import Attachment, ChatDocument, DocumentPage, Store

PAGES = [(1, "i", "text", "첫 쪽"), (2, None, "scan", ""), (3, "1", "text", "third\x00page")]


def test_a_document_comes_back_with_its_pages(store: Store) -> None:
    store.add_document("sha", "이름.pdf", PAGES, "/somewhere/sha.pdf")
    found = store.document("sha")
    assert found is not None
    assert (found.sha, found.name, found.path) == ("sha", "이름.pdf", "/somewhere/sha.pdf")
    assert found.pages == tuple(DocumentPage(*page) for page in PAGES)
    assert store.documents() == [found]
    assert store.document("other") is None


def test_a_second_reading_replaces_the_first(store: Store) -> None:
    store.add_document("sha", "a.pdf", PAGES, "p")
    store.add_document("sha", "b.pdf", PAGES[:1], "p")
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
        store.add_document(sha, f"{sha}.pdf", PAGES, f"/{sha}")
    store.attach_document(chat, "attached", "attached.pdf")
    store.append(other, "user", "q", [Attachment("brought", "b.pdf", "whole", (), "text")])
    assert [(one.sha, one.path) for one in store.remove_unreferenced()] == [("free", "/free")]
    store.delete(other)
    store.detach(chat, "attached")
    assert {one.sha for one in store.remove_unreferenced()} == {"attached", "brought"}
    assert store.documents() == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_are_kept_to_the_letter(store: Store, form: str) -> None:
    name = unicodedata.normalize(form, "회의 '록' <b>.pdf")  # type: ignore[arg-type]
    store.add_document("sha", name, [], "p")
    found = store.document("sha")
    assert found is not None
    assert found.name == name
