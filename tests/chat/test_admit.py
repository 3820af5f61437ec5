"""Prompts cut to fit: at all sizes of memory, what is left out is whole, oldest, and told once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvchat.chat.admit import Admitted, Told, _as_one, admit
from kvchat.chat.conversations import Conversations
from kvchat.chat.told import told_of_messages
from kvchat.engine.engine import Engine
from kvchat.errors import OutOfMemory
from kvchat.planner.measures import TruncateTurns
from kvchat.settings import Settings

Start = Callable[..., Conversations]
SETTINGS = Settings(max_new_tokens=40, prefill_chunk=64)
SYSTEM = "Answer in one word."


@pytest.fixture
def engine(start: Start) -> Engine:
    found = start()._worker.engine
    assert found is not None
    return found


def chat(num_turns: int, *unanswered: int) -> Told:
    """Turns of different lengths; those that are unanswered are joined with the next question."""
    said = [{"role": "system", "content": SYSTEM}]
    for turn in range(num_turns):
        said.append({"role": "user", "content": f"question {turn}? " + "word " * (turn * 7 % 23)})
        if turn < num_turns - 1 and turn not in unanswered:
            said.append({"role": "assistant", "content": f"answer {turn}! " * (1 + turn % 4)})
    return told_of_messages(said)


def admitted_at(engine: Engine, told: Told, tokens: int) -> Admitted:
    """Admitted where a text of so many tokens fits, and not one more."""
    budget = engine.costs.needed_bytes(tokens, SETTINGS.prefill_chunk)
    snapshot = replace(engine.room.latest, budget=budget, headroom=0)
    return admit(told, engine.loaded, SETTINGS, snapshot, engine.costs)


@pytest.mark.parametrize("unanswered", [(), (0,), (0, 1, 2, 5, 8), tuple(range(15))])
def test_turns_are_left_out_once_and_whole(engine: Engine, unanswered: tuple[int, ...]) -> None:
    told = chat(16, *unanswered)
    whole = admitted_at(engine, told, 2048)
    assert whole.left_out == ()
    names = [one.name for one in told.messages if one.role == "user"]
    head = whole.prompt.token_ids[: whole.prompt.spans[0].stop]
    assert SYSTEM in str(engine.loaded.tokenizer.decode(head))
    seen = set()
    for tokens in range(256, 1280, 64):
        found = admitted_at(engine, told, tokens)
        prompt = found.prompt
        assert prompt.token_ids[: len(head)] == head
        assert len(prompt.token_ids) + found.plan.reply_tokens <= found.plan.capacity_tokens
        assert list(found.left_out) == names[: len(found.left_out)]
        turns = [span.name for span in prompt.spans if span.kind == "turn"]
        assert turns == names[len(found.left_out) :]
        cuts = [one for one in found.measures if isinstance(one, TruncateTurns)]
        assert [one.turns for one in cuts] == ([found.left_out] if found.left_out else [])
        seen.add(len(found.left_out))
    assert len(seen) > 3


def test_what_can_never_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(OutOfMemory):
        admitted_at(engine, told_of_messages([{"role": "user", "content": "word " * 900}]), 500)


def test_turns_left_out_in_two_rounds_are_one_entry() -> None:
    """The screen and the ledger take the newest entry for all that is left out."""
    rounds = [TruncateTurns(100, ("a", "b"), 20), TruncateTurns(50, ("c",), 7)]
    assert _as_one(rounds) == (TruncateTurns(150, ("a", "b", "c"), 27),)
    assert _as_one([]) == ()
