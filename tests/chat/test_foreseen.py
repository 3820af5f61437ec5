"""What a change of settings would leave out of the open chat, and so it comes once it holds."""

import pytest

from kvchat.errors import OutOfMemory
from kvchat.ui.consequences import consequences
from tests.chat.conftest import Start
from tests.chat.test_conversations import answered, turns_that_fit
from tests.chat.test_undo import QUESTION, talked


def test_turns_that_a_lower_budget_leaves_out_are_told_before(start: Start) -> None:
    talks, budget = turns_that_fit(start, QUESTION, 12)
    chat = talked(talks, 10)
    weights = talks.frame()["weights_bytes"]
    lower = weights + (budget - weights) * 6 // 10
    assert talks.foreseeing.left_out(chat, talks.settings) is None
    foreseen = talks.foreseeing.left_out(chat, talks.held.with_changes({"memory_budget": lower}))
    assert foreseen is not None
    assert foreseen.turns_now < foreseen.turns < 10
    told = consequences(talks, {"memory_budget": lower}, "en", chat)["chat"]
    assert (told["turns"], told["tokens"]) == (foreseen.turns, foreseen.tokens)
    assert consequences(talks, {"memory_budget": lower}, "en")["then"]
    assert "chat" not in consequences(talks, {"memory_budget": budget * 2}, "en", chat)

    talks.apply({"memory_budget": lower})
    live = answered(talks.ask(chat, f"{QUESTION} 11"))
    (cut,) = [row for row in talks.ledger_since(chat, 0) if row["code"] == "truncate_turns"]
    assert len(cut["turns"]) == foreseen.turns
    assert cut["lost_tokens"] == foreseen.tokens
    assert live.figures is not None
    read = live.figures["prompt_tokens"] - live.figures["reused_tokens"]
    assert abs(foreseen.cost.tokens - read) < 8
    assert foreseen.cost.s is not None


def test_a_chat_that_would_fit_no_more_says_why(start: Start) -> None:
    talks, _ = turns_that_fit(start, QUESTION, 24)
    chat = talked(talks, 16)
    for turn in range(1, 17):
        talks.pin_turn(chat, turn)
    lower = {"memory_budget": "1100 KiB"}
    with pytest.raises(OutOfMemory, match=r"\d"):
        talks.foreseeing.left_out(chat, talks.held.with_changes(lower))
    told = consequences(talks, lower, "ko", chat)["chat"]
    assert "1,014" in told["problem"]["message"]
    assert talks.foreseeing.left_out(talks.new_chat(), talks.held.with_changes(lower)) is None


def test_what_the_disk_has_is_not_read_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that were left out were kept on disk: taking them back loads them."""
    talks, budget = turns_that_fit(start, QUESTION, 12)
    chat = talked(talks, 10)
    talks = start(memory_budget=budget, prefill_chunk=32)  # a restart: all is written
    weights = talks.frame()["weights_bytes"]
    talks.apply({"memory_budget": weights + (budget - weights) * 6 // 10})
    answered(talks.ask(chat, f"{QUESTION} 11"))
    talks.apply({"memory_budget": budget})
    row = [one for one in talks.ledger_since(chat, 0) if one["code"] == "truncate_turns"][-1]
    engine = talks.loading.engine
    assert engine is not None
    assert engine.disk is not None
    kept = talks.undo_cost(chat, row["number"])
    with monkeypatch.context() as without:
        without.setattr(engine.disk, "num_stored", lambda _ids: 0)
        anew = talks.undo_cost(chat, row["number"])
    assert kept.tokens <= anew.tokens - 3 * 64
    talks.undo(chat, row["number"])
    live = answered(talks.ask(chat, "And the first?"))
    assert live.figures is not None
    read = live.figures["prompt_tokens"] - live.figures["reused_tokens"]
    assert kept.tokens - 64 <= read < kept.tokens + 64 + 24
