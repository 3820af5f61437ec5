"""What is foretold of a change is what is shown once it holds; and what a change leaves behind."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.reach import letters_per_token
from kvchat.errors import ModelError, SettingsError
from kvchat.settings_sources import Saved
from kvchat.ui.consequences import consequences
from tests.chat.conftest import Start

TIGHT = "1600 KiB"  # weights of 786 KiB, and room for some hundred tokens
CHANGES: list[dict[str, Any]] = [
    {"memory_budget": "1700 KiB"},
    {"memory_budget": "2 MiB"},
    {"memory_budget": "1 MiB"},
    {"memory_budget": "auto"},
    {"headroom": "1 GiB", "memory_budget": "auto"},
    {"seal_format": "int8"},
    {"seal_format": "int6/int4", "floor_format": "int4"},
    {"seal_format": "int8", "sink_tokens": 0},
    {"floor_format": "fp"},
    {"ladder": ["truncate_turns"]},
    {"ladder": ["truncate_turns"], "prefill_chunk": 64},
    {"ladder": ["requantize", "truncate_turns"], "prefill_chunk": 16},
    {"host_quota": "1 MiB"},
    {"host_quota": "1 MiB", "ladder": ["offload"]},
    {"evict_by": "heavy_hitter"},
]


def capacity_shown(talks: Conversations, wanted: int) -> int:
    """Of the frame, once it was measured under the new limits."""
    until = time.monotonic() + 20
    while (found := talks.frame()["kv"]["capacity_tokens"]) != wanted:
        if time.monotonic() > until:
            return int(found)
        time.sleep(0.05)
    return int(found)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_is_foretold_is_shown_after_it_was_applied(
    start: Start, changes: dict[str, Any]
) -> None:
    talks = start(memory_budget=TIGHT)
    before = talks.held.foretell(talks.settings)
    assert before.tokens == capacity_shown(talks, before.tokens)
    then = talks.held.foretell(talks.held.with_changes(changes))
    talks.apply(changes)
    assert then.tokens == capacity_shown(talks, then.tokens)
    assert then.footprint.total <= then.allowed_bytes or then.short_by_bytes


@pytest.mark.parametrize(
    ("changes", "binding"),
    [({}, "budget"), ({"memory_budget": "1 GiB"}, "length"), ({"memory_budget": "auto"}, "length"),
     ({"memory_budget": "auto", "headroom": "240 GiB"}, "memory")],
)  # fmt: skip
def test_the_limit_that_binds_is_named(start: Start, changes: dict[str, Any], binding: str) -> None:
    talks = start(memory_budget=TIGHT)
    found = talks.held.foretell(talks.held.with_changes(changes))
    assert found.binding == binding
    assert (found.tokens == 2048) == (binding == "length")


def test_a_budget_below_the_weights_says_what_lacks(start: Start) -> None:
    talks = start()
    weights = talks.frame()["weights_bytes"]
    assert weights < 2**20
    found = talks.held.foretell(talks.held.with_changes({"memory_budget": "1 MiB"}))
    assert (found.tokens > 0) == (found.short_by_bytes == 0)
    talks.held.now = replace(talks.settings, memory_budget=weights)
    short = talks.held.foretell(talks.held.now)
    assert (short.tokens, short.allowed_bytes) == (0, weights)
    assert 0 < short.short_by_bytes < 2**20


def test_fewer_bits_take_fewer_bytes_a_token(start: Start) -> None:
    talks = start()
    token = [
        talks.held.foretell(talks.held.with_changes({"seal_format": one})).token_bytes
        for one in ("fp", "int8", "int6/int4", "int4")
    ]
    assert token == sorted(token, reverse=True)
    assert token[0] == 4 * 2 * 2 * 16 * 4  # layers, heads, keys and values, head size, fp32
    assert token[1] == 4 * 2 * 2 * (16 + 2)


def test_another_precision_is_foretold_before_the_model_is_loaded_in_it(start: Start) -> None:
    talks = start(memory_budget=TIGHT)
    now = talks.held.foretell(talks.settings)
    half = talks.held.foretell(talks.held.with_changes({"dtype": "bf16"}))
    assert half.footprint.weights == pytest.approx(talks.frame()["weights_bytes"] / 2, rel=0.001)
    assert half.tokens > now.tokens
    with pytest.raises(ModelError):
        talks.held.foretell(talks.held.with_changes({"model": "/nowhere"}))


def test_what_is_only_for_one_model_is_kept_so(start: Start, data_dir: Path) -> None:
    talks = start()
    model = talks.settings.model
    talks.apply({"top_k": 7}, only_model=True)
    talks.apply({"min_p": 0.25})
    assert (talks.settings.top_k, talks.settings.min_p) == (7, 0.25)
    kept = Saved.read(data_dir / "settings.toml")
    assert (kept.general, kept.models) == ({"min_p": 0.25}, {model: {"top_k": 7}})
    assert [talks.held.source(name) for name in ("top_k", "min_p", "top_p")] == [
        "model", "file", "schema",
    ]  # fmt: skip
    talks.apply({}, ["top_k", "min_p"])
    assert (talks.settings.top_k, talks.settings.min_p) == (0, 0.0)
    assert Saved.read(data_dir / "settings.toml") == Saved()


def test_what_is_wrong_changes_nothing(start: Start, data_dir: Path) -> None:
    talks = start()
    for wrong in ({"top_k": 7, "temperature": 99}, {"nosuch": 1}, {"seal_format": "int3"}):
        with pytest.raises(SettingsError):
            talks.apply(wrong)
    assert talks.settings.top_k == 0
    assert not (data_dir / "settings.toml").exists()


def test_a_setting_that_needs_a_reload_is_told_until_it_was_done(start: Start) -> None:
    talks = start()
    assert talks.apply({"weights": "int8", "top_k": 3}) == ["weights"]
    assert talks.held.pending() == ["weights"]
    assert talks.apply({"weights": "as-is"}) == []
    assert talks.held.pending() == []


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_drawer_is_told_when_it_holds_and_what_it_costs(start: Start, lang: Any) -> None:
    talks = start(memory_budget=TIGHT)
    changes = {"memory_budget": "2 MiB", "seal_format": "int6/int4", "system_text": "x"}
    found = consequences(talks, changes, lang)
    assert found["effects"] == {
        "memory_budget": "now", "seal_format": "next answer", "system_text": "new chat",
    }  # fmt: skip
    assert found["then"]["tokens"] > found["now"]["tokens"] > 0
    assert found["then"]["letters"] > found["now"]["letters"] > 0
    engine = talks.loading.engine
    assert engine is not None
    letters = found["then"]["tokens"] * letters_per_token(engine.loaded.tokenizer, lang)
    assert found["then"]["letters"] == pytest.approx(letters, rel=0.05)
    assert found["then"]["pages"] == round(letters / found["then"]["page_letters"])
    (row,) = found["fidelity"]
    assert row["pair"] == "int6/int4"
    assert row["known"]
    assert "%" in row["note"]


def test_while_no_model_runs_it_is_said_that_nothing_can_be_foretold(start: Start) -> None:
    talks = start()
    talks.loading.unload()
    assert talks.loading.worker.is_loaded(20)
    found = consequences(talks, {"memory_budget": "2 MiB"}, "ko")
    assert found["problem"]["message"]
    assert found["effects"] == {"memory_budget": "now"}


@pytest.mark.parametrize("newest", [0, 100, 640])
def test_so_many_of_the_newest_tokens_stay_as_computed(start: Start, newest: int) -> None:
    """And what is foretold of it is what is there."""
    talks = start(seal_format="int8", newest_tokens=newest, sink_tokens=0, max_new_tokens=4)
    chat = talks.new_chat()
    talks.ask(chat, "many words " * 110).wait_ended(60)
    engine = talks.loading.engine
    assert engine is not None
    (span,) = talks.frame(chat)["turns"]
    token_bytes = talks.held.foretell(talks.held.with_changes({"seal_format": "fp"})).token_bytes
    kept = span["formats"]["fp/fp"] / token_bytes
    least = max(64, -(-newest // 64) * 64)
    assert least <= kept < least + 128, span
    assert span["formats"]["int8/int8"] > 0
    assert engine.limits.storing.hot_tokens == least
