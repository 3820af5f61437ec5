"""Chats longer than what fits: the system text stays, the oldest turns go and it shows, the counter
is the prompt's own, whatever made the chat too long (C15, C16, C18, C24).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.engine.engine import Engine
from tests.chat.test_conversations import AS_COMPUTED, answered
from tests.chat.test_documents_in_chats import pdf, prompt_text

Start = Callable[..., Conversations]
SYSTEM = "Always answer in Korean. Be the keeper of the harbour lamp of Saltmouth."
LIMIT = 700


def engine_of(conversations: Conversations) -> Engine:
    engine = conversations._worker.engine
    assert engine is not None
    return engine


@pytest.fixture
def talks(start: Start) -> Conversations:
    """Where a text of so many tokens fits, and not one more."""
    usual = {"system_text": SYSTEM, "prefill_chunk": 32, "ladder": AS_COMPUTED, "max_new_tokens": 6}
    budget = engine_of(start()).costs.needed_bytes(LIMIT, 32)
    return start(memory_budget=budget, **usual)


class Watched:
    """Asks, and looks at each prompt: its ids are what the engine holds before the reply."""

    def __init__(self, talks: Conversations, chat: str) -> None:
        self.talks, self.chat = talks, chat
        self.sizes: list[int] = []
        self.num_read_again = 0

    def ask(self, question: str) -> LiveAnswer:
        live = answered(self.talks.ask(self.chat, question))
        assert live.figures is not None
        engine = engine_of(self.talks)
        assert engine.room.text is not None
        ids = engine.room.text.sequence.token_ids
        size = live.figures["prompt_tokens"]
        assert size + live.figures["reply_tokens"] <= LIMIT
        frame = self.talks.frame(self.chat)
        assert sum(span["tokens"] for span in frame["spans"]) == len(ids)  # what the meter shows
        assert len(ids) - size in (live.figures["reply_tokens"], live.figures["reply_tokens"] - 1)
        told = prompt_text(self.talks)
        assert SYSTEM in told
        assert told.index(SYSTEM) < told.index("user")
        self.sizes.append(size)
        if len(self.sizes) > 1:
            self.num_read_again += live.figures["reused_tokens"] < size / 2
        return live

    def cuts(self) -> list[dict[str, Any]]:
        rows = self.talks.ledger_since(self.chat, 0)
        return [row for row in rows if row["code"] == "truncate_turns"]

    def gone(self) -> list[int]:
        return [one.turn for one in self.talks.history(self.chat) if one.left_out]


@pytest.mark.slow
def test_sixty_turns_keep_the_system_text_and_forget_the_oldest_in_plain_sight(
    talks: Conversations,
) -> None:
    seen = Watched(talks, talks.new_chat())
    seen.ask("The password is ANANAS-7734.")
    for number in range(58):
        seen.ask(f"Tell me something of the sea, number {number}.")
    seen.ask("What was the password?")
    assert "ANANAS" not in prompt_text(talks)
    first = talks.history(seen.chat)[0]
    assert first.left_out  # the note in the chat
    assert seen.cuts()[-1]["turn_numbers"] == seen.gone() == list(range(1, len(seen.gone()) + 1))
    assert seen.cuts()[-1]["lost_tokens"] > 0
    marked = [row["turn"] for row in talks.frame(seen.chat)["marks"] if row["left_out"]]
    assert marked == seen.gone()
    full = seen.sizes[len(seen.sizes) // 2 :]
    assert min(full) > 0.55 * LIMIT  # never half of the window at once
    assert sum(full) / len(full) > 0.7 * LIMIT
    assert seen.num_read_again == len(seen.cuts())


def many_small(_: Path) -> list[str]:
    return [f"Number {n} of many." for n in range(30)]


def one_huge(_: Path) -> list[str]:
    return [*(f"Number {n} of few." for n in range(10)), "a long story " * 50, "And then?", "So?"]


@pytest.mark.parametrize("questions", [many_small, one_huge])
def test_whatever_is_too_long_the_oldest_whole_turns_go(
    talks: Conversations, tmp_path: Path, questions: Callable[[Path], list[str]]
) -> None:
    seen = Watched(talks, talks.new_chat())
    for question in questions(tmp_path):
        seen.ask(question)
    assert seen.gone() == list(range(1, len(seen.gone()) + 1))
    assert len(seen.gone()) > 3
    assert seen.num_read_again <= len(seen.cuts()) <= len(seen.sizes) / 3


def test_a_document_in_mid_chat_pushes_the_oldest_out_like_any_text(
    talks: Conversations, tmp_path: Path
) -> None:
    seen = Watched(talks, talks.new_chat())
    for number in range(14):
        seen.ask(f"Tell me something of the sea, number {number}.")
    before = seen.gone()
    leaves = ("The harbour lamp is green.\nIt was lit in 1848.", "Gulls sleep in the boathouse.")
    talks.add_document(seen.chat, pdf(tmp_path / "a.pdf", *leaves), "a.pdf")
    seen.ask("When was the lamp lit?")
    assert "It was lit in 1848." in prompt_text(talks)
    for number in range(3):
        seen.ask(f"And what else, number {number}?")
    assert seen.gone() == list(range(1, len(seen.gone()) + 1))
    assert len(seen.gone()) > len(before)
    assert seen.num_read_again <= len(seen.cuts())
