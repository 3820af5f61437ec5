"""Documents in chats at their worst: unreadable, removed too early, shared, gone while needed."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.chat.rows import DocumentRow
from kvchat.documents.fence import NO_ROOM
from kvchat.errors import DocumentError, StoreError
from tests.chat.test_conversations import answered, ended
from tests.chat.test_reading import held_back
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
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def is_empty(conversations: Conversations) -> bool:
    """Neither a file nor a text of any document is left, and the reader is at rest."""
    until = time.monotonic() + 30
    while kept_files(conversations) and time.monotonic() < until:
        time.sleep(0.02)  # a reader that was told to end removes its file
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


def test_each_of_two_empty_files_is_told_of_by_its_own_name(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat, other = conversations.new_chat(), conversations.new_chat()
    names = ["empty.txt", "empty-0bytes.pdf"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
        conversations.add_document(chat, tmp_path / name, name)
    conversations.wait_documents(chat)
    conversations.add_document(other, tmp_path / names[1], names[1])
    told = [row.problem for row in conversations.wait_documents(chat)]
    assert [one and (one["code"], one["facts"]["name"]) for one in told] == [
        ("document_empty", name) for name in names
    ]


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


FACTS = (
    "The pump of the garden runs at night.",
    "The lamp of the harbour is green.",
    "The clock of the tower is slow.",
)


def prompt_text(conversations: Conversations) -> str:
    """The text that is open in the cache: what the model was told, and its reply."""
    engine = conversations._worker.engine
    assert engine is not None
    assert engine.room.text is not None
    return str(engine.loaded.tokenizer.decode(engine.room.text.sequence.token_ids))


def cited(live: LiveAnswer) -> set[tuple[str, int]]:
    return {(one["name"], one["page"]) for one in live.citations}


def codes(conversations: Conversations, chat: str) -> list[str]:
    return [row["code"] for row in conversations.ledger_since(chat, 0)]


def test_two_documents_are_told_apart(start: Start, tmp_path: Path) -> None:
    """C36: each page is that of its own file."""
    conversations = start()
    chat = conversations.new_chat()
    for name, facts in (("a.pdf", FACTS[:2]), ("b.pdf", FACTS[2:])):
        conversations.add_document(chat, pdf(tmp_path / name, *facts), name)
    live = answered(conversations.ask(chat, "Where is the clock of the tower?"))
    assert cited(live) == {("b.pdf", 1)}
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert cited(live) == {("a.pdf", 2)}
    told = prompt_text(conversations)
    assert told.count("a.pdf") == told.count("b.pdf") == 1
    assert told.index("a.pdf") < told.index("b.pdf") < told.index("clock of the tower?")


def test_passages_of_two_documents(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages")
    chat = conversations.new_chat()
    for name, facts in (("a.pdf", FACTS[:2]), ("b.pdf", FACTS[2:])):
        conversations.add_document(chat, pdf(tmp_path / name, *facts), name)
    live = answered(conversations.ask(chat, "Where is the clock of the tower?"))
    assert cited(live) == {("b.pdf", 1)}
    assert conversations.history(chat)[0].documents == ("a.pdf", "b.pdf")  # both went with it
    assert "a.pdf" not in prompt_text(conversations)
    answered(conversations.ask(chat, "Where is the clock of the tower?"))
    assert conversations.history(chat)[1].documents == ("b.pdf",)


def test_a_document_added_in_mid_chat_stands_in_that_turn(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    first = answered(conversations.ask(chat, "Good morning"))
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    second = answered(conversations.ask(chat, "When does the pump run?"))
    assert cited(second) == {("a.pdf", 1)}
    told = prompt_text(conversations)
    assert told.index("Good morning") < told.index("a.pdf") < told.index("pump run?")
    assert first.figures is not None
    assert second.figures is not None
    assert second.figures["reused_tokens"] >= first.figures["prompt_tokens"]
    answered(conversations.ask(chat, "And the lamp of the harbour?"))
    assert prompt_text(conversations).count("a.pdf") == 1
    # The first turn was made without it, and is again.
    again = answered(conversations.regenerate(chat, 1))
    assert cited(again) == set()
    assert "a.pdf" not in prompt_text(conversations)


def test_the_same_file_is_one_document_and_under_two_names_two_of_a_chat(
    start: Start, tmp_path: Path
) -> None:
    conversations = start()
    chat, other = conversations.new_chat(), conversations.new_chat()
    pdf(tmp_path / "a.pdf", *FACTS)
    (tmp_path / "copy.pdf").write_bytes((tmp_path / "a.pdf").read_bytes())
    first = conversations.add_document(chat, tmp_path / "a.pdf", "a.pdf")
    assert conversations.add_document(chat, tmp_path / "a.pdf", "a.pdf") == first
    second = conversations.add_document(chat, tmp_path / "copy.pdf", "copy.pdf")
    assert conversations.add_document(chat, tmp_path / "copy.pdf", "copy.pdf") == second
    assert conversations.add_document(other, tmp_path / "copy.pdf", "copy.pdf") == first
    assert [row.name for row in conversations.wait_documents(chat)] == ["a.pdf", "copy.pdf"]
    conversations.remove_document(chat, second)
    answered(conversations.ask(chat, "When does the pump run?"))
    assert prompt_text(conversations).count("<document") == 1
    shared = answered(conversations.ask(other, "When does the pump run?"))
    assert cited(shared) == {("copy.pdf", 1)}
    conversations.delete(chat)
    assert len(kept_files(conversations)) == 1
    assert conversations.page_image(first, 1).startswith(b"\x89PNG")


def test_a_removed_document_is_told_no_more(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    path = pdf(tmp_path / "a.pdf", *FACTS)
    document = conversations.add_document(chat, path, "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    assert "garden" in prompt_text(conversations)
    conversations.remove_document(chat, document)
    live = answered(conversations.ask(chat, "And the lamp of the harbour?"))
    assert cited(live) == set()
    assert "garden" not in prompt_text(conversations)
    conversations.add_document(chat, path, "a.pdf")
    live = answered(conversations.ask(chat, "And the clock of the tower?"))
    assert cited(live) == {("a.pdf", 3)}
    assert "garden" in prompt_text(conversations)


def test_what_is_chosen_for_a_document_holds_from_the_next_question_on(
    start: Start, tmp_path: Path
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    choose = conversations._store.choose_mode
    seen = []
    for mode in ("off", "passages", "whole", None):
        choose(chat, sha, mode)
        live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
        told = prompt_text(conversations)
        row = conversations.ledger_since(chat, 0)[-1]
        seen.append((row["code"], row["reason"], "tower is slow" in told, bool(live.citations)))
    assert seen == [
        ("read_off", "chosen", False, False),
        ("read_passages", "chosen", True, True),  # one passage has all of it
        ("read_whole", "chosen", True, True),
        ("read_whole", "fits", True, True),
    ]
    choose(chat, sha, "off")
    answered(conversations.ask(chat, "And the clock?"))
    assert "harbour is green" not in prompt_text(conversations)  # nor what old turns brought


@pytest.mark.parametrize("mode", ["whole", "passages"])
@pytest.mark.parametrize("early", [True, False])
def test_pages_that_are_left_out_are_given_neither_whole_nor_searched(
    start: Start, tmp_path: Path, mode: str, early: bool
) -> None:
    conversations = start(document_mode=mode)
    chat = conversations.new_chat()
    if not early:
        answered(conversations.ask(chat, "Good morning"))
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    first = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert ("a.pdf", 2) in cited(first)
    conversations._store.leave_page(chat, sha, 2)
    live = answered(conversations.ask(chat, "Which lamp of the harbour? Which one?"))
    assert "harbour is green" not in prompt_text(conversations)
    assert ("a.pdf", 2) not in cited(live)
    conversations._store.leave_page(chat, sha, 2, left=False)
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert "harbour is green" in prompt_text(conversations)
    assert ("a.pdf", 2) in cited(live)


def test_pages_that_a_question_names_come_along_whole(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages")
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    live = answered(conversations.ask(chat, "Summarise pages 2-3"))
    assert cited(live) == {("a.pdf", 2), ("a.pdf", 3)}
    assert "pump" not in prompt_text(conversations)
    live = answered(conversations.ask(chat, "1쪽에는 뭐라고 써 있어?"))
    assert cited(live) == {("a.pdf", 1)}
    live = answered(conversations.ask(chat, "What is on page 9?"))
    assert cited(live) == set()
    assert "it has 3 pages, and no page 9" in prompt_text(conversations)


def test_a_question_that_names_a_document_searches_only_that(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages")
    chat = conversations.new_chat()
    for name in ("a-1.pdf", "b-2.pdf"):
        conversations.add_document(chat, pdf(tmp_path / name, *FACTS, name), name)
    live = answered(conversations.ask(chat, "In b-2.pdf, which lamp of the harbour?"))
    assert {name for name, _ in cited(live)} == {"b-2.pdf"}
    live = answered(conversations.ask(chat, "And in the first one?"))
    assert {name for name, _ in cited(live)} == {"a-1.pdf"}


def test_nothing_found_is_told_in_the_language_of_the_question(
    start: Start, tmp_path: Path
) -> None:
    conversations = start(document_mode="passages")
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    live = answered(conversations.ask(chat, "프랑스 대통령은 누구인가?"))
    assert live.citations == []
    assert "찾지 못했음" in prompt_text(conversations)


def test_a_document_that_no_longer_fits_whole_is_read_by_passages(
    start: Start, tmp_path: Path
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    leaves = (f"Leaf {n} tells nothing but its number, {n * 7}." for n in range(14))
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *leaves), "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    assert codes(conversations, chat) == ["read_whole"]
    engine = conversations._worker.engine
    assert engine is not None
    tokens = conversations.documents(chat)[0].num_tokens
    budget = engine.costs.needed_bytes(tokens, 32)
    conversations.apply({"memory_budget": max(budget, 1024**2), "prefill_chunk": 32, "passages": 1})
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    row = conversations.ledger_since(chat, 0)[1]
    assert (row["code"], row["reason"]) == ("read_passages", "too_large")
    assert conversations.documents(chat)[0].mode == "passages"
    assert {name for name, _ in cited(live)} == {"a.pdf"}


@pytest.mark.parametrize("mode", ["auto", "whole", "passages"])
def test_a_short_question_is_never_refused_for_its_document(
    start: Start, tmp_path: Path, mode: str
) -> None:
    """At any size of memory, decided then or before: what does not fit whole is searched."""
    conversations = start(document_mode=mode, prefill_chunk=32, passages=1, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    leaves = [f"Leaf {n} tells nothing but its number, {n * 7}." for n in range(12)]
    path = pdf(tmp_path / "a.pdf", *FACTS, *leaves)
    old = conversations.new_chat()
    conversations.add_document(old, path, "a.pdf")
    answered(conversations.ask(old, "When does the pump run?"))
    seen = set()
    for tokens in (1500, 1100, 900, 800, 700, 600, 500):
        conversations.apply({"memory_budget": engine.costs.needed_bytes(tokens, 32)})
        new = conversations.new_chat()
        conversations.add_document(new, path, "a.pdf")
        for chat in (new, old):
            answered(conversations.ask(chat, "Which lamp of the harbour?"))
        seen.add(conversations.documents(new)[0].mode)
    assert seen == ({"passages"} if mode == "passages" else {"whole", "passages"})


def test_no_more_passages_are_brought_along_than_fit(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages", passages=50, max_new_tokens=8)
    chat = conversations.new_chat()
    pages = [
        "\n".join(f"{FACTS[n % 3]} Leaf {page}, line {n}, {page * n}." for n in range(12))
        for page in range(40)
    ]
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *pages), "a.pdf")
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert live.figures is not None
    assert live.figures["prompt_tokens"] + 8 <= 2048
    row = conversations.ledger_since(chat, 0)[-1]
    assert (row["code"], row["reason"]) == ("fewer_passages", "prompt_too_long")
    assert 1 < row["arguments"]["passages"] < row["arguments"]["was"] <= 50
    (brought,) = conversations._store.messages(chat)[0].attachments
    assert len(brought.passages) == row["arguments"]["passages"]
    answered(conversations.ask(chat, "And the pump of the garden?"))


def test_passages_that_do_not_fit_are_told_under_the_reply_and_to_the_model(
    start: Start, tmp_path: Path
) -> None:
    """Never an answer from nothing, without a word."""
    conversations = start(document_mode="passages", prefill_chunk=512, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    long = " ".join(f"The lamp of the harbour is number {n}." for n in range(60))
    path = pdf(tmp_path / "a.pdf", long, *FACTS)
    chat = conversations.new_chat()
    conversations.add_document(chat, path, "a.pdf")
    conversations.wait_documents(chat)
    conversations.apply({"memory_budget": engine.costs.needed_bytes(300, 32)})
    answered(conversations.ask(chat, "Which lamp of the harbour?"))
    (row,) = [one for one in conversations.ledger_since(chat, 0) if one["code"] == "fewer_passages"]
    assert row["arguments"]["passages"] == 0
    (turn,) = conversations.history(chat)
    (source,) = turn.sources
    assert (source["no_room"], source["pages"]) == (True, [])
    (brought,) = conversations._store.messages(chat)[0].attachments
    assert NO_ROOM["en"] in brought.text


def test_passages_have_the_room_that_smaller_steps_leave(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages", passages=1, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    budget = engine.costs.needed_bytes(600, 32)
    chunk = next(n for n in (512, 256, 128) if engine.costs.largest_tokens(budget, n) < 400)
    conversations.apply({"memory_budget": budget, "prefill_chunk": chunk})
    answered(conversations.ask(chat, "Which lamp of the harbour?"))
    (brought,) = conversations._store.messages(chat)[0].attachments
    assert brought.passages


def test_a_document_in_a_turn_that_was_left_out_is_not_cited_but_searched(
    start: Start, tmp_path: Path
) -> None:
    """The model does not see it any more, so nothing of it may be claimed; then passages serve."""
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "Good morning"))
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    seen = []
    for number in range(12):
        live = answered(conversations.ask(chat, f"word {number} " * 40 + "the lamp of the harbour"))
        seen.append("lamp of the harbour is green" in prompt_text(conversations))
        assert bool(cited(live)) == seen[-1]
        if "read_passages" in codes(conversations, chat):
            break
    assert not all(seen)
    assert seen[-1]
    row = conversations.ledger_since(chat, 0)[-1]
    left = [r for r in conversations.ledger_since(chat, 0) if r["code"] == "read_passages"]
    assert [r["reason"] for r in left] == ["left_out"]
    assert row["number"] >= left[0]["number"]


def test_what_was_given_stays_cited_whatever_model_reads_now(start: Start, tmp_path: Path) -> None:
    """Citations come from the text that came along, not from where passages begin today."""
    conversations = start(document_mode="passages", passages=2)
    chat = conversations.new_chat()
    pages = [f"{fact} " + f"Leaf {n} says little. " * 30 for n, fact in enumerate(FACTS * 4)]
    pages = [page.replace("little. ", "little.\n") for page in pages]
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *pages), "a.pdf")
    before = cited(answered(conversations.ask(chat, "Which lamp of the harbour?")))
    assert before
    conversations._shelf.tokens.use(lambda text: len(text) // 20)  # another model's tokens
    conversations._shelf._indexes.forget()
    assert cited(answered(conversations.regenerate(chat, 1))) == before


def test_a_question_that_no_passage_suits_cites_nothing_and_says_so(
    start: Start, tmp_path: Path
) -> None:
    conversations = start(document_mode="passages")
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    live = answered(conversations.ask(chat, "Who won the football world cup in 2018?"))
    assert live.citations == []
    assert "nothing was found" in prompt_text(conversations)
    live = answered(conversations.ask(chat, "Thanks!"))
    assert live.citations == []


def test_documents_survive_a_restart(start: Start, tmp_path: Path) -> None:
    """Read or not yet read when the program ended, they are there and serve the next question."""
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    conversations.wait_documents(chat)
    conversations.add_document(chat, long_pdf(tmp_path / "long.pdf"), "long.pdf")
    conversations = start()
    rows = conversations.wait_documents(chat)
    assert [(row.name, row.num_pages, row.problem) for row in rows] == [
        ("a.pdf", 3, None),
        ("long.pdf", 600, None),
    ]
    live = answered(conversations.ask(chat, "When does the pump run?"))
    assert ("a.pdf", 1) in cited(live)


def test_a_deleted_turn_lets_go_of_what_only_it_brought(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "Good morning"))
    document = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    conversations.remove_document(chat, document)
    assert len(kept_files(conversations)) == 1  # what was said in the chat can still be cited
    conversations.delete_turn(chat, 2)
    assert is_empty(conversations)
    assert conversations._store.verify() == []


def test_what_is_stored_in_less_of_a_document_is_named_by_its_pages(
    start: Start, tmp_path: Path
) -> None:
    """The ledger says which pages, and a pinned page is not among them."""
    conversations = start(prefill_chunk=32, document_mode="whole", headroom=0, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    said = "that the sea is {} fathoms deep. " * 5
    leaves = (f"Leaf {n} says " + said.format(*range(n, n + 5)) for n in range(1, 9))
    chat = conversations.new_chat()
    path = pdf(tmp_path / "a.pdf", *("\n".join(one.split(". ")) for one in leaves))
    sha = conversations.add_document(chat, path, "a.pdf")
    answered(conversations.ask(chat, "How deep is the sea?"))
    tokens = conversations.documents(chat)[0].num_tokens
    conversations.pin_document(chat, sha, 3)
    room = max(tokens * 8 // 7, tokens + 400)  # so much that it may stay whole, and little more
    conversations.apply({"memory_budget": engine.costs.needed_bytes(room, 32)})
    less: list[dict[str, Any]] = []
    for number in range(12):
        if not less:
            live = answered(conversations.ask(chat, f"Where is it deepest, {number}? " * 4))
            less = [row for row in live.ledger if row["code"].startswith("requantize")]
    assert conversations.documents(chat)[0].mode == "whole"
    named = [one for row in less for one in row["documents"]]
    assert {one["document"] for one in named} == {sha}
    numbers = {page for one in named for page in one["pages"]}
    assert numbers
    assert numbers <= set(range(1, 9)) - {3}
    span = next(one for one in conversations.frame(chat)["spans"] if one["kind"] == "document")
    assert set(span["formats"]) == {"fp/fp", less[0]["arguments"]["formats"]}


def test_a_question_is_answered_from_the_pages_read_so_far_and_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is searched; a document is whole only once all of it is there."""
    monkeypatch.setattr("kvchat.chat.answers.PATIENCE_S", 0.0)
    there, go_on = held_back(monkeypatch, 3)
    conversations = start()
    chat = conversations.new_chat()
    pages = [*FACTS[:2], "Leaf three says little.", *FACTS[2:]]
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *pages), "a.pdf")
    assert there.wait(60)
    try:
        live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
        assert {one["page"] for one in live.citations} <= {1, 2, 3}
        (told,) = [one for one in live.ledger if one["code"] == "read_so_far"]
        assert (told["arguments"]["pages"], told["arguments"]["of"]) == ("1-3", len(pages))
        assert f"pages 1-3 of {len(pages)} were read when this was asked" in prompt_text(
            conversations
        )
        (turn,) = conversations.history(chat)
        assert turn.sources[0]["so_far"] == {"pages": "1-3", "of": len(pages)}
        assert turn.sources[0]["mode"] == "passages"
        last = answered(conversations.ask(chat, "What does page 5 say?"))
        assert last.citations == []
        assert "has no page" not in prompt_text(conversations)
        thanks = answered(conversations.ask(chat, "Thanks!"))
        assert thanks.ledger == []
    finally:
        go_on.set()
    conversations.wait_documents(chat)
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert [one["code"] for one in live.ledger] == ["read_whole"]


def test_where_it_is_wanted_a_question_waits_for_the_whole(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.chat.answers.PATIENCE_S", 0.0)
    there, go_on = held_back(monkeypatch, 1)
    conversations = start(answer_while_reading=False)
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    assert there.wait(60)
    live = conversations.ask(chat, "Which lamp of the harbour?")
    assert not live.wait_ended(0.3)
    assert live.status == "reading"
    go_on.set()
    assert [one["code"] for one in answered(live).ledger] == ["read_whole"]
