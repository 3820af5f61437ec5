"""Pinned turns, documents and pages: never left out, never stored in less, or said why not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.admit import Told, _need, admit
from kvchat.chat.conversations import Conversations
from kvchat.chat.outline import outline_of
from kvchat.chat.template import ChatMessage
from kvchat.documents.fence import fence_document
from kvchat.documents.reader import Page, ReadDocument
from kvchat.engine.engine import Engine
from kvchat.errors import OutOfMemory, RequestError, StoreError
from kvchat.settings import RUNGS
from kvchat.store.records import PinnedPages
from tests.chat.test_admit import SETTINGS
from tests.chat.test_conversations import answered, ended, turns_that_fit
from tests.chat.test_documents_in_chats import FACTS, pdf, prompt_text

Start = Callable[..., Conversations]
QUESTION = "What does the memory of this chat hold, and why does it hold that at all?"


@pytest.fixture
def engine(start: Start) -> Engine:
    found = start()._worker.engine
    assert found is not None
    return found


def test_a_pinned_turn_is_never_left_out(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 8)
    chat = conversations.new_chat()
    for turn in range(1, 20):
        answered(conversations.ask(chat, f"{QUESTION} {turn}"))
        if turn == 3:
            conversations.pin_turn(chat, 2)
    history = conversations.history(chat)
    gone = [one.turn for one in history if one.left_out]
    assert gone == [1, *range(3, gone[-1] + 1)]
    assert len(gone) > 8
    assert [one.turn for one in history if one.pinned] == [2]
    frame = conversations.frame(chat)
    assert [span["turn"] for span in frame["turns"] if span["pinned"]] == [2]
    assert [row["turn"] for row in frame["marks"] if row["left_out"]] == gone
    conversations = start()
    assert conversations.history(chat) == history  # pins and marks outlive the program
    conversations.pin_turn(chat, 2, pinned=False)
    assert not any(one.pinned for one in conversations.history(chat))


def test_a_pinned_turn_is_not_stored_in_less(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 14, RUNGS)
    chat = conversations.new_chat()
    for turn in range(1, 20):
        answered(conversations.ask(chat, f"{QUESTION} {turn}"))
        if turn == 4:
            for one in (3, 4):
                conversations.pin_turn(chat, one)
    spans = {span["turn"]: span for span in conversations.frame(chat)["turns"]}
    stored = {turn for turn, span in spans.items() if span["formats"].keys() != {"fp/fp"}}
    assert stored
    between = conversations.ledger_since(chat, 0)
    named = {turn for row in between if "requantize" in row["code"] for turn in row["turns"]}
    pinned = [one.user_hash for one in conversations.history(chat) if one.pinned]
    # a block at the edge of a pinned turn has some of its tokens and stays, too
    assert not named & set(pinned)
    assert not stored & {3, 4}


def test_a_pinned_turn_keeps_its_inside(start: Start) -> None:
    long = "What does the memory of this chat hold, and why? " * 28
    ladder = ("drop_idle", "shrink_chunk", "evict", "truncate_turns")
    conversations, _ = turns_that_fit(start, long, 3, ladder)
    chat = conversations.new_chat()
    for turn in range(1, 5):
        answered(conversations.ask(chat, f"{long} {turn}"))
        if turn == 1:
            conversations.pin_turn(chat, 1)
    history = conversations.history(chat)
    assert not history[0].evicted
    assert any(one.evicted for one in history)
    assert conversations.frame(chat)["turns"][0]["evicted_tokens"] == 0


def test_pins_that_leave_no_room_are_what_the_refusal_names(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 8)
    chat = conversations.new_chat()
    for turn in range(1, 6):
        answered(conversations.ask(chat, f"{QUESTION} {turn}"))
        conversations.pin_turn(chat, turn)
    live = ended(conversations.ask(chat, "long " * 40))
    assert isinstance(live.error, OutOfMemory)
    assert live.error.code == "pinned_turns_too_large"
    facts = live.error.facts
    assert facts["turns"] == "1, 2, 3, 4, 5"
    assert facts["tokens"] > facts["capacity"] > facts["pinned"] > 0
    assert "턴 1, 2, 3, 4, 5" in live.error.remedy("ko")
    for turn in range(1, 6):
        conversations.pin_turn(chat, turn, pinned=False)
    again = answered(conversations.regenerate(chat, 6))
    assert again.error is None


def pins_fit(conversations: Conversations, chat: str, turn: int) -> bool:
    try:
        conversations.pin_turn(chat, turn)
    except OutOfMemory:
        return False
    return True


def test_more_than_could_ever_fit_is_not_pinned(start: Start) -> None:
    """One sentence before anything is computed, and nothing is changed."""
    conversations, _ = turns_that_fit(start, QUESTION, 8)
    chat = conversations.new_chat()
    for turn in range(1, 14):
        answered(conversations.ask(chat, f"{QUESTION} {turn}"))
    turn = 1
    while turn < 13 and pins_fit(conversations, chat, turn):
        turn += 1
    with pytest.raises(OutOfMemory) as caught:
        conversations.pin_turn(chat, turn)
    assert caught.value.code == "pins_too_large"
    assert caught.value.facts["pinned"] > caught.value.facts["capacity"]
    pinned = [one.turn for one in conversations.history(chat) if one.pinned]
    assert pinned == list(range(1, turn))
    assert 1 < len(pinned) < 13
    answered(conversations.ask(chat, "short"))  # what was pinned leaves room for a question


def test_pins_follow_their_message(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    for question in ("first", "second", "third"):
        answered(conversations.ask(chat, question))
    conversations.pin_turn(chat, 2)
    conversations.pin_turn(chat, 3)
    conversations.delete_turn(chat, 1)
    assert [(one.text, one.pinned) for one in conversations.history(chat)] == [
        ("second", True),
        ("third", True),
    ]
    answered(conversations.edit(chat, 2, "third, edited"))
    assert [(one.text, one.pinned) for one in conversations.history(chat)][1] == (
        "third, edited",
        True,
    )
    answered(conversations.regenerate(chat, 2))
    assert conversations.history(chat)[1].pinned
    conversations.delete_turn(chat, 2)
    assert [(one.text, one.pinned) for one in conversations.history(chat)] == [
        ("second", True),
        ("third", True),  # the version before the edit, as it was
    ]
    with pytest.raises(RequestError):
        conversations.pin_turn(chat, 7)
    with pytest.raises(StoreError):
        conversations.pin_turn("nowhere", 1)


# --- documents and pages --------------------------------------------------------------------------


def document(*pages: str) -> ReadDocument:
    read = [Page(n, None, text, "text") for n, text in enumerate(pages, 1)]
    return ReadDocument("d" * 64, "a.pdf", tuple(read))


LEAVES = document(*(f"Leaf {n} says: " + f"word {n * 7} " * 60 for n in range(1, 5)))


def told_of(pins: PinnedPages) -> Told:
    messages = [
        ChatMessage("user", "first question", "q1"),
        ChatMessage("assistant", "first answer", "r1"),
        ChatMessage("user", "second question", "q2"),
    ]
    documents = [(LEAVES.sha256, fence_document(LEAVES))]
    return Told("Be brief.", documents, messages, pinned_pages=pins)


def test_a_prompt_knows_where_pages_stand(engine: Engine) -> None:
    snapshot = replace(engine.room.latest, budget=None, headroom=0)
    prompt = admit(told_of({}), engine.loaded, SETTINGS, snapshot, engine.costs).prompt
    (span,) = [one for one in prompt.spans if one.kind == "document"]
    assert [page.page for page in prompt.pages] == [1, 2, 3, 4]
    decode = engine.loaded.tokenizer.decode
    for number, page in enumerate(prompt.pages, 1):
        assert page.document == span.name
        text = str(decode(prompt.token_ids[page.start : page.stop]))
        assert text.lstrip().startswith(f"[page {number}]")
        assert f"Leaf {number}" in text
        assert f"Leaf {number + 1}" not in text
    assert all(a.stop == b.start for a, b in zip(prompt.pages, prompt.pages[1:], strict=False))
    assert span.start < prompt.pages[0].start
    assert prompt.pages[-1].stop == span.stop


@pytest.mark.parametrize(
    ("pins", "kept"),
    [({}, set()), ({LEAVES.sha256: frozenset({2})}, {2}), ({LEAVES.sha256: None}, {1, 2, 3, 4})],
)
def test_what_is_pinned_of_a_document_is_no_old_text(
    engine: Engine, pins: PinnedPages, kept: set[int]
) -> None:
    snapshot = replace(engine.room.latest, budget=None, headroom=0)
    told = told_of(pins)
    prompt = admit(told, engine.loaded, SETTINGS, snapshot, engine.costs).prompt
    need = _need(outline_of(prompt), told, (), SETTINGS)
    old = {i for start, stop in need.old for i in range(start, stop)}
    for page in prompt.pages:
        tokens = set(range(page.start, page.stop))
        assert not tokens & old if page.page in kept else tokens <= old
    (first,) = [one for one in prompt.spans if one.name == "q1"]
    assert set(range(first.start, first.stop)) <= old
    nowhere = replace(prompt, pages=())  # a tokenizer that tells no places
    kept_all = _need(outline_of(nowhere), told, (), SETTINGS).old
    assert (kept_all[0][0] == first.start) == bool(pins)


def test_a_pinned_document_stays_whole_or_is_what_the_refusal_names(
    start: Start, tmp_path: Path
) -> None:
    conversations = start(prefill_chunk=32, passages=1, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    leaves = (f"Leaf {n} tells nothing but its number, {n * 7}." for n in range(14))
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *leaves), "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    conversations.pin_document(chat, sha)
    assert conversations.documents(chat)[0].pinned
    tokens = conversations.documents(chat)[0].num_tokens
    conversations.apply({"memory_budget": engine.costs.needed_bytes(tokens, 32)})
    live = ended(conversations.ask(chat, "Which lamp of the harbour?"))
    assert isinstance(live.error, OutOfMemory)
    assert live.error.code == "pinned_documents_too_large"
    assert conversations.documents(chat)[0].mode == "whole"
    conversations.pin_document(chat, sha, pinned=False)
    answered(conversations.regenerate(chat, 2))
    answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert conversations.documents(chat)[0].mode == "passages"
    with pytest.raises(OutOfMemory) as caught:
        conversations.pin_document(chat, sha)
    assert caught.value.code == "pins_too_large"
    assert not conversations.documents(chat)[0].pinned


def test_a_pinned_document_that_cannot_come_along_in_mid_chat_is_why(
    start: Start, tmp_path: Path
) -> None:
    """Its text would be the question's own: that is not too long, and it is given back."""
    conversations = start(prefill_chunk=32, max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "Good morning"))
    leaves = (f"Leaf {n} tells nothing but its number, {n * 7}." for n in range(14))
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *leaves), "a.pdf")
    conversations.wait_documents(chat)
    conversations.pin_document(chat, sha)
    tokens = conversations.documents(chat)[0].num_tokens
    conversations.apply({"memory_budget": engine.costs.needed_bytes(tokens, 32)})
    live = ended(conversations.ask(chat, "Which lamp of the harbour?"))
    assert live.error is not None
    assert live.error.code == "pinned_documents_too_large"
    assert live.error.facts["tokens"] > live.error.facts["capacity"]
    assert len(conversations.history(chat)) == 1
    conversations.pin_document(chat, sha, pinned=False)
    answered(conversations.ask(chat, "Which lamp of the harbour?"))


def test_a_pinned_page_comes_along_and_stays(start: Start, tmp_path: Path) -> None:
    """With passages looked up for each question, the page is there from the next one on, once, also
    when the turn that brought it would be left out.
    """
    conversations = start(document_mode="passages", passages=1, max_new_tokens=8)
    chat = conversations.new_chat()
    said = ("The harbour lamp is green.", "The cellar door is red.", "The pump runs at night.")
    pages = [
        "\n".join([one, *(f"Leaf {n}, line {k} of it." for k in range(12))])
        for n, one in enumerate(said)
    ]
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *pages), "a.pdf")
    answered(conversations.ask(chat, "When does the pump run?"))
    assert "cellar door" not in prompt_text(conversations)
    conversations.pin_document(chat, sha, 2)
    assert conversations.documents(chat)[0].pinned_pages == (2,)
    answered(conversations.ask(chat, "Which lamp is green?"))
    kept = conversations.history(chat)[1]
    for number in range(12):
        answered(conversations.ask(chat, f"word {number} " * 40))
        assert prompt_text(conversations).count("The cellar door is red.") == 1
    gone = [one.turn for one in conversations.history(chat) if one.left_out]
    assert 1 in gone
    assert kept.turn not in gone
    assert max(gone) > kept.turn
    with pytest.raises(RequestError):
        conversations.pin_document(chat, sha, 4)
    with pytest.raises(RequestError):
        conversations.pin_document(chat, "0" * 64)
    conversations.remove_document(chat, sha)
    assert conversations._store.document_pins(chat) == {}
