"""Documents in chats at their worst: unreadable, removed too early, shared, gone while needed."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.rows import DocumentRow
from kvchat.errors import DocumentError, StoreError
from tests.chat.test_conversations import answered, ended
from tests.documents.small_pdf import write_pdf

Start = Callable[..., Conversations]


def pdf(path: Path, *pages: str) -> Path:
    """A PDF with one line for each line of each page."""
    lines = [[(50.0, 700.0 - 20 * i, line) for i, line in enumerate(p.split("\n"))] for p in pages]
    return write_pdf(path, lines)


def long_pdf(path: Path) -> Path:
    """Takes about half a second to read."""
    return pdf(path, *(f"This is leaf number {i}.\nIt says little." for i in range(600)))


def kept_files(conversations: Conversations) -> list[str]:
    folder = conversations._saved._path.parent / "documents"
    return sorted(one.name for one in folder.iterdir())


def is_empty(conversations: Conversations) -> bool:
    """Neither a file nor a text of any document is left, and the reader is at rest."""
    conversations._shelf._readers.submit(int).result(30)
    return not kept_files(conversations) and not conversations._store.documents()


def problems(rows: list[DocumentRow]) -> list[str | None]:
    return [row.problem and row.problem["code"] for row in rows]


def test_what_cannot_be_read_says_so_and_the_rest_is_answered_from(
    start: Start, tmp_path: Path
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    (tmp_path / "empty.pdf").write_bytes(b"")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    (tmp_path / "words.pdf").write_text("words")
    pdf(tmp_path / "good.pdf", "The pump runs at night.")
    for name in ("empty.pdf", "broken.pdf", "words.pdf", "good.pdf"):
        conversations.add_document(chat, tmp_path / name, name)
    with pytest.raises(DocumentError):
        conversations.add_document(chat, tmp_path / "missing.pdf", "missing.pdf")
    with pytest.raises(DocumentError):
        conversations.add_document(chat, tmp_path, "folder.pdf")
    rows = conversations.wait_documents(chat)
    assert [row.name for row in rows] == ["empty.pdf", "broken.pdf", "words.pdf", "good.pdf"]
    assert problems(rows) == ["document_empty", "document_damaged", "document_not_pdf", None]
    live = answered(conversations.ask(chat, "When does the pump run?"))
    assert {(one["name"], one["page"]) for one in live.citations} == {("good.pdf", 1)}
    modes = [(row.name, row.mode) for row in conversations.documents(chat)]
    assert modes[-1] == ("good.pdf", "whole")
    assert {mode for _, mode in modes[:-1]} == {None}


@pytest.mark.parametrize("name", ["enc-user-test_user.pdf", "empty-blank-page.pdf"])
def test_a_chat_with_nothing_but_an_unreadable_file_still_answers(
    start: Start, shared_pdfs: Path, name: str
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, shared_pdfs / name, name)
    assert problems(conversations.wait_documents(chat)) != [None]
    live = answered(conversations.ask(chat, "What does the file say?"))
    assert live.citations == []
    assert conversations.history(chat)[0].documents == ()


def test_an_unreadable_file_goes_with_its_chat(start: Start, tmp_path: Path) -> None:
    """A file that was never read is in the data folder all the same, until nobody has it."""
    conversations = start()
    (tmp_path / "x.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    chats = [conversations.new_chat(), conversations.new_chat()]
    for chat in chats:
        document = conversations.add_document(chat, tmp_path / "x.pdf", "x.pdf")
        conversations.wait_documents(chat)
    conversations.remove_document(chats[0], document)
    assert len(kept_files(conversations)) == 1
    conversations.delete(chats[1])
    assert is_empty(conversations)


@pytest.mark.parametrize("leave", ["remove", "delete"])
def test_a_document_that_is_given_up_while_it_is_read_leaves_nothing(
    start: Start, tmp_path: Path, leave: str
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    document = conversations.add_document(chat, long_pdf(tmp_path / "long.pdf"), "long.pdf")
    while not conversations.documents(chat)[0].pages_done:
        time.sleep(0.01)
    assert conversations.documents(chat)[0].pages_done < 600
    if leave == "remove":
        conversations.remove_document(chat, document)
        assert conversations.documents(chat) == []
    else:
        conversations.delete(chat)
    assert is_empty(conversations)


def test_the_same_file_removed_and_added_again_is_read_again(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    path = long_pdf(tmp_path / "long.pdf")
    for _ in range(4):
        document = conversations.add_document(chat, path, "long.pdf")
        conversations.remove_document(chat, document)
    conversations.add_document(chat, path, "long.pdf")
    (row,) = conversations.wait_documents(chat)
    assert (row.problem, row.num_pages) == (None, 600)
    assert len(kept_files(conversations)) == 1


def test_a_file_added_to_a_chat_that_is_gone_leaves_nothing(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    conversations.delete(chat)
    with pytest.raises(StoreError):
        conversations._shelf.add(chat, pdf(tmp_path / "a.pdf", "words"), "a.pdf")
    assert is_empty(conversations)


def test_what_an_interrupted_copy_left_is_removed_at_the_next_start(start: Start) -> None:
    conversations = start()
    folder = conversations._saved._path.parent / "documents"
    folder.mkdir()
    (folder / "half.part").write_bytes(b"half")
    assert kept_files(start()) == []


def test_names_are_made_clean_before_they_are_kept(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    path = pdf(tmp_path / "a.pdf", "words")
    conversations.add_document(chat, path, "a\n<b>\x07" + "x" * 300 + ".pdf")
    (row,) = conversations.wait_documents(chat)
    assert "\n" not in row.name
    assert len(row.name) < 200
    assert ended(conversations.ask(chat, "Which words?")).citations[0]["name"] == row.name


def test_stopping_does_not_wait_for_a_document(start: Start, tmp_path: Path) -> None:
    """The question stays, unanswered; once the document is read, it can be asked again."""
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, long_pdf(tmp_path / "long.pdf"), "long.pdf")
    live = conversations.ask(chat, "What does leaf 7 say?")
    while live.status != "reading":
        time.sleep(0.005)
    live.stop()
    assert ended(live).status == "stopped"
    assert conversations.documents(chat)[0].pages_done < 600
    (shown,) = conversations.history(chat)
    assert (shown.text, shown.reply, shown.documents) == ("What does leaf 7 say?", None, ())
    assert list(live.events())[-1]["type"] == "done"
    conversations.wait_documents(chat)
    again = answered(conversations.ask(chat, "What does leaf 7 say?"))
    assert again.citations


def test_a_chat_deleted_while_it_waits_for_a_document(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, long_pdf(tmp_path / "long.pdf"), "long.pdf")
    live = conversations.ask(chat, "What does leaf 7 say?")
    while live.status != "reading":
        time.sleep(0.005)
    conversations.delete(chat)
    assert ended(live).status == "stopped"
    assert is_empty(conversations)
    assert conversations._store.verify() == []
