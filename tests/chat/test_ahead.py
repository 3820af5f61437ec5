"""A dropped document is read before the first question, which then reads only itself; chosen ways
of reading, and what they cost.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.engine.ahead import CHUNK_TOKENS
from kvchat.errors import RequestError
from kvchat.ui.consequences import consequences
from tests.chat.test_conversations import answered
from tests.chat.test_documents_in_chats import FACTS, pdf, prompt_text

Start = Callable[..., Conversations]
LEAVES = tuple(f"Leaf {n} tells nothing but its number, which is {n * 7}." for n in range(9))


def waited(conversations: Conversations, chat: str, stage: str = "done") -> dict[str, Any]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        progress = conversations.ahead.progress(chat)
        if progress is not None and progress["stage"] == stage:
            return progress
        time.sleep(0.02)
    raise AssertionError(conversations.ahead.progress(chat))


def reused(live: Any) -> int:
    assert live.figures is not None
    return int(live.figures["reused_tokens"])


@pytest.mark.parametrize("early", [True, False])
def test_the_first_question_reuses_all_that_was_read_ahead(
    start: Start, tmp_path: Path, early: bool
) -> None:
    """Also in mid chat, where the document stands before the question's own words."""
    conversations = start()
    chat = conversations.new_chat()
    if not early:
        answered(conversations.ask(chat, "Good morning"))
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    progress = waited(conversations, chat)
    (row,) = conversations.documents(chat)
    assert progress["done"] == progress["of"] > row.num_tokens > CHUNK_TOKENS
    assert row.ahead == progress
    assert row.mode is None  # decided with the question, as it was foreseen
    assert conversations.frame(chat)["documents"][0]["ahead"] == progress
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert reused(live) == progress["of"]
    assert "harbour is green" in prompt_text(conversations)
    assert conversations.ahead.progress(chat) is None
    # what was foreseen is what would have been told without it
    other = start(disk_quota=0)
    again = answered(other.regenerate(chat, 2 if not early else 1))
    assert again.text == live.text


def test_a_second_chat_about_the_same_document_starts_at_once(start: Start, tmp_path: Path) -> None:
    conversations = start()
    path = pdf(tmp_path / "a.pdf", *FACTS, *LEAVES)
    first, second = conversations.new_chat(), conversations.new_chat()
    conversations.add_document(first, path, "a.pdf")
    of = waited(conversations, first)["of"]
    conversations.add_document(second, path, "a.pdf")
    assert waited(conversations, second)["of"] == of
    live = answered(conversations.ask(second, "Which lamp of the harbour?"))
    assert reused(live) == of


def test_what_was_read_ahead_outlives_the_program(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    of = waited(conversations, chat)["of"]
    conversations = start()
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert reused(live) >= of - 128  # the newest tokens of a text are not in whole blocks


def test_only_what_is_read_whole_is_read_ahead(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    before = waited(conversations, chat)["of"]
    conversations.choosing.leave_page(chat, sha, 2, left=True)
    until = time.monotonic() + 30
    while (conversations.ahead.progress(chat) or {"of": 0})["of"] in (0, before):
        assert time.monotonic() < until
        time.sleep(0.02)
    after = waited(conversations, chat)["of"]
    assert after < before
    conversations.choosing.choose(chat, sha, "passages")
    while conversations.ahead.progress(chat) is not None:
        assert time.monotonic() < until
        time.sleep(0.02)
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert "harbour is green" not in prompt_text(conversations)
    assert ("a.pdf", 2) not in {(one["name"], one["page"]) for one in live.citations}


def test_a_plan_says_how_and_at_what_cost(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    conversations.wait_documents(chat)
    for asked, pages in ((chat, 1), ("", 0), ("gone", 0)):  # its pages are counted, others guessed
        then = consequences(conversations, {}, "en", asked)["then"]
        (own,) = conversations.documents(chat)
        assert then["page_tokens"] == pages * round(own.num_tokens / own.num_pages)
        if pages:
            assert then["pages"] == pytest.approx(then["tokens"] / then["page_tokens"], rel=0.1)
    (row,) = conversations.choosing.plan(chat)
    assert (row["document"], row["mode"], row["reason"], row["chosen"]) == (
        sha, "whole", "fits", None,
    )  # fmt: skip
    assert row["fits"]
    assert 0 < row["passage_tokens"] <= row["tokens"]
    assert row["bytes"] >= row["tokens"] * row["bytes_per_token"] * 0.9
    conversations.choosing.choose(chat, sha, "off")
    (row,) = conversations.choosing.plan(chat)
    assert (row["mode"], row["reason"], row["chosen"]) == ("off", "chosen", "off")
    answered(conversations.ask(chat, "Which lamp?"))
    assert conversations.documents(chat)[0].mode == "off"
    assert "a.pdf" not in prompt_text(conversations)
    conversations.choosing.choose(chat, sha, None)
    (row,) = conversations.choosing.plan(chat)
    assert (row["mode"], row["chosen"]) == ("whole", None)


def test_reading_it_whole_in_a_running_chat_says_what_is_read_again(
    start: Start, tmp_path: Path
) -> None:
    """And nothing where its text joins the next question."""
    talks = start()
    chat = talks.new_chat()
    sha = talks.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    talks.wait_documents(chat)
    (row,) = talks.choosing.plan(chat)
    assert set(row["again"].values()) == {None}, "there is no chat yet"
    talks.choosing.choose(chat, sha, "passages")
    for question in ("Which lamp of the harbour?", "And which number has leaf 3?"):
        answered(talks.ask(chat, question))
    (row,) = talks.choosing.plan(chat)
    again = row["again"]["whole"]
    assert row["again"]["passages"] is None
    talks.choosing.choose(chat, sha, "whole")
    (row,) = talks.choosing.plan(chat)
    assert row["mode"] == "whole", "said at once"
    talks.ahead.drop(chat)
    live = answered(talks.ask(chat, "Good"))
    assert live.figures is not None
    read = live.figures["prompt_tokens"] - row["tokens"]  # with system text and template
    assert 0.5 * read < again["tokens"] < read
    (row,) = talks.choosing.plan(chat)
    assert row["again"]["off"]["tokens"] >= row["again"]["passages"]["tokens"] > again["tokens"]

    late = talks.add_document(chat, pdf(tmp_path / "b.pdf", *LEAVES), "b.pdf")
    talks.wait_documents(chat)
    found = {row["document"]: row for row in talks.choosing.plan(chat)}
    assert found[late]["again"]["whole"] is None


def test_what_does_not_fit_whole_says_its_numbers(start: Start, tmp_path: Path) -> None:
    talks = start(memory_budget="1600 KiB", prefill_chunk=64)
    chat, engine = talks.new_chat(), talks.loading.engine
    assert engine is not None
    talks.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    talks.wait_documents(chat)

    def planned() -> dict[str, Any]:
        (row,) = talks.choosing.plan(chat)
        assert (row["mode"], row["reason"]) == ("passages", "too_large")
        assert row["room"]["capacity"] == engine.fits().tokens
        assert row["tokens"] > row["room"]["unasked"]["tokens"]
        return dict(row["room"])

    room = planned()
    left = room["capacity"] - room["reserve"]
    assert room["chosen"] == room["unasked"] == {"tokens": max(0, left), "limit": "rest"}
    fits = engine.fits().tokens
    talks.apply({"max_new_tokens": fits})  # so long an answer leaves a document no share
    room = planned()
    assert room["unasked"] == {"tokens": 0, "limit": "share"}
    assert room["chosen"]["tokens"] == max(0, left)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda one, chat, _: one.choose(chat, "0" * 64, "off"),
        lambda one, chat, sha: one.choose(chat, sha, "sideways"),
        lambda one, chat, sha: one.leave_page(chat, sha, 0, left=True),
        lambda one, chat, sha: one.leave_page(chat, sha, 99, left=True),
        lambda one, chat, _: one.leave_page(chat, "0" * 64, 1, left=True),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    start: Start, tmp_path: Path, wrong: Callable[..., None]
) -> None:
    conversations = start()
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    conversations.wait_documents(chat)
    with pytest.raises(RequestError):
        wrong(conversations.choosing, chat, sha)
    (row,) = conversations.documents(chat)
    assert (row.chosen, row.left_pages) == (None, ())


def test_another_model_reads_ahead_what_the_one_before_had_read(
    start: Start, tmp_path: Path
) -> None:
    conversations = start(disk_quota=0)
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS, *LEAVES), "a.pdf")
    of = waited(conversations, chat)["of"]
    (row,) = (one for one in conversations.chats() if one.id == chat)
    assert row.kv_bytes > 0  # what was read ahead is the chat's
    conversations.loading.reload()
    conversations.wait_ready(120)
    assert waited(conversations, chat)["of"] == of
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert reused(live) == of
