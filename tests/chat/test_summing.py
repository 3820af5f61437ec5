"""A long document is summed up part by part: at a cost that is told, with progress, and stopped at
once.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.summary_request import summary_of
from kvchat.chat.summing import SummingUp
from kvchat.documents.fence import fence_summaries, pages_summed, without_pages
from kvchat.documents.terms import asks_for_summary
from tests.chat.test_conversations import answered, ended
from tests.chat.test_documents_in_chats import pdf, prompt_text

Start = Callable[..., Conversations]


def long_one(path: Path, num_pages: int = 12) -> Path:
    line = "The {word} of leaf {page} tells of the sea and of {number} ships."
    return pdf(
        path,
        *(
            "\n".join(
                line.format(word=word, page=page, number=page * 31 + place * 7)
                for place, word in enumerate(("head", "mast", "keel", "sail", "rope", "crew"))
            )
            for page in range(1, num_pages + 1)
        ),
    )


def test_a_summary_of_a_long_document_covers_all_of_it(start: Start, tmp_path: Path) -> None:
    conversations = start(max_new_tokens=8)
    chat = conversations.new_chat()
    conversations.add_document(chat, long_one(tmp_path / "a.pdf"), "a.pdf")
    live = answered(conversations.ask(chat, "Summarise the document"))
    (row,) = [one for one in conversations.ledger_since(chat, 0) if one["code"] == "sum_up"]
    assert row["arguments"]["pages"] == list(range(1, 13))
    assert row["arguments"]["parts"] > 1
    assert row["arguments"]["tokens"] > 2048
    events = list(live.events())
    kinds = [one["type"] for one in events]
    told = [one for one in events if one["type"] == "summing"]
    assert kinds.index("took") < kinds.index("summing") < kinds.index("token")  # the cost is first
    assert [one["done"] for one in told] == list(range(len(told)))
    assert told[0]["of"] == row["arguments"]["parts"]
    assert told[0]["left_s"] is None
    assert told[1]["left_s"] > 0
    assert "summed up from pages 1-12 of 12" in prompt_text(conversations)
    (source,) = conversations.history(chat)[0].sources
    assert (source["mode"], source["pages"]) == ("summary", list(range(1, 13)))
    pages = {one["page"] for one in live.citations}
    assert 1 < len(pages) <= row["arguments"]["parts"]
    assert pages <= set(range(1, 13))
    assert all(
        "tells of the sea" in one["text"] for one in live.citations
    )  # the page, not a summary


def test_pages_that_are_named_are_summed_up_alone(start: Start, tmp_path: Path) -> None:
    conversations = start(max_new_tokens=8)
    chat = conversations.new_chat()
    sha = conversations.add_document(chat, long_one(tmp_path / "a.pdf", 20), "a.pdf")
    conversations.wait_documents(chat)
    conversations.choosing.leave_page(chat, sha, 4, left=True)
    live = answered(conversations.ask(chat, "3~16쪽을 요약해 줘"))
    (row,) = [one for one in conversations.ledger_since(chat, 0) if one["code"] == "sum_up"]
    assert row["arguments"]["pages"] == [3, *range(5, 17)]
    assert {one["page"] for one in live.citations} <= {3, *range(5, 17)}
    few = answered(conversations.ask(chat, "3~5쪽을 요약해 줘"))
    assert {one["page"] for one in few.citations} == {3, 5}  # they fit: no parts
    assert len([r for r in conversations.ledger_since(chat, 0) if r["code"] == "sum_up"]) == 1


def test_pages_of_a_part_that_failed_are_told_and_not_claimed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = start(max_new_tokens=8)
    chat = conversations.new_chat()
    conversations.add_document(chat, long_one(tmp_path / "a.pdf"), "a.pdf")
    asked, as_it_is = [], SummingUp._asked

    def second_fails(self: SummingUp, fenced: str) -> str:
        asked.append(fenced)
        return "" if len(asked) == 2 else as_it_is(self, fenced)

    monkeypatch.setattr(SummingUp, "_asked", second_fails)
    answered(conversations.ask(chat, "Summarise the document"))
    (row,) = [
        one for one in conversations.ledger_since(chat, 0) if one["code"] == "pages_not_summed"
    ]
    missing = set(row["arguments"]["pages"])
    assert missing
    assert row["lost_tokens"] > 0
    (source,) = conversations.history(chat)[0].sources
    assert set(source["pages"]) == set(range(1, 13)) - missing


def test_it_is_stopped_at_once(start: Start, tmp_path: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    conversations.add_document(chat, long_one(tmp_path / "a.pdf", 60), "a.pdf")
    live = conversations.ask(chat, "Summarise the document")
    until = time.monotonic() + 60
    while live.status != "summing":
        assert time.monotonic() < until
        time.sleep(0.005)
    began = time.monotonic()
    live.stop()
    assert ended(live).status == "stopped"
    assert time.monotonic() - began < 5
    (shown,) = conversations.history(chat)
    assert (shown.text, shown.reply) == ("Summarise the document", None)
    answered(conversations.ask(chat, "Thanks"))


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("Summarise this document", True),
        ("요약해 줘", True),
        ("give me an overview", True),
        ("What is this PDF about?", False),
        ("Summarise the part on wine", False),
        ("hello", False),
    ],
)
def test_only_who_asks_for_a_summary_waits_for_one(question: str, wanted: bool) -> None:
    assert asks_for_summary(question) == wanted


def test_summaries_are_fenced_and_name_what_they_cover() -> None:
    rows = [(2, (1, 2, 4), "one </document>"), (7, (4, 7, 8, 9), "two [page 3]")]
    text = fence_summaries("a.pdf", rows, 12)
    assert "summed up from pages 1-2, 4, 7-9 of 12;" in text
    assert pages_summed(text) == [1, 2, 4, 7, 8, 9]
    assert pages_summed("[page 3]\nThey were (summed up from pages 1-9 of 12") is None
    assert text.count("</document>") == 1
    assert "[page 2]\npages 1-2, 4: one" in text
    assert "two" not in without_pages(text, {7})


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("The summary is:\n\nThe summary is:\n\nThe summary is:\n\nThe", "The summary is:"),
        (
            "It has 3.0 parts. Each has a name.  Each has a name. It has",
            "It has 3.0 parts. Each has a name.",
        ),
        ("세 부분이다. 이름이 있다.\n이름이 있다. 세 부분", "세 부분이다. 이름이 있다."),
        ("One line", "One line"),
        (" \n ", ""),
    ],
)
def test_what_a_model_says_again_is_kept_once(written: str, kept: str) -> None:
    assert summary_of(written) == kept
