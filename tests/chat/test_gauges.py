"""What the cache tab asks for, from a real program with its own small model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.gauges import Gauges, hangul_per_token, korean_sample
from kvchat.device.ceilings import Ceilings
from kvchat.errors import StoreError
from kvchat.models.ceilings import KeptCeilings
from kvchat.settings import Settings, changed
from tests.tiny import tiny_folder, tiny_tokenizer


@pytest.fixture
def talks(tmp_path: Path) -> Conversations:
    folder = tiny_folder("llama", tmp_path / "model")
    made = {"model": str(folder), "max_new_tokens": 12, "temperature": 0.0}
    settings = changed(Settings(), made)
    return Conversations(settings, tmp_path / "data")


def test_figures_of_all_turns_timeline_and_ceilings(
    talks: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        talks.wait_ready(120)
        chat = talks.new_chat()
        told: list[Any] = []
        monkeypatch.setattr(talks.gauges, "answered", told.append)
        for text in ("one", "two"):
            assert talks.ask(chat, text).wait_ended(120)
        rows = talks.gauges.turns(chat)
        assert [row["turn"] for row in rows] == [1, 2]
        assert told == [row["figures"] for row in rows]
        for row in rows:
            figures = row["figures"]
            assert figures["prefill_flops_per_s"] > 0
            assert figures["prefill_tokens_per_s"] > 0
            if figures["reply_tokens"] > 1:
                assert figures["decode_bytes_per_s"] > 0
        line = talks.gauges.timeline()
        assert line["points"]
        for point in line["points"]:
            assert len(point) == len(line["columns"])
        total = talks.frame(chat)["device"]["total"]
        assert sum(line["points"][-1][1:]) == total
        assert talks.gauges.ceilings()["stage"] in ("waiting", "measuring", "done")
        assert talks.gauges.measure_again()["stage"] in ("waiting", "measuring")
        with pytest.raises(StoreError):
            talks.gauges.turns("none")
        rate = talks.frame(None)["hangul_per_token"]
        assert rate is None or rate > 0
    finally:
        talks.close()


def test_before_the_model_is_there_nothing_is_claimed(talks: Conversations) -> None:
    try:
        found = talks.gauges.ceilings()
        if talks.status()["stage"] == "loading":
            assert found == {"stage": "waiting", "measured": None}
    finally:
        talks.close()


@pytest.mark.parametrize(
    ("reads", "computes", "num_tokens", "is_doubted"),
    [
        (90.0, 900.0, 9, False),
        (101.0, 900.0, 9, True),
        (101.0, 900.0, 1, False),  # nothing was decoded: the token came out of the prefill
        (90.0, 1001.0, 9, True),
        (None, None, 0, False),
    ],
)
def test_a_ceiling_that_an_answer_exceeded_is_doubted(
    reads: float | None, computes: float | None, num_tokens: int, is_doubted: bool
) -> None:
    doubts: list[bool] = []
    kept = KeptCeilings(Ceilings(100.0, 1000.0), "a device", "float32", 1, 1.0)
    gauging = SimpleNamespace(kept=kept, doubt=lambda: doubts.append(True))
    worker: Any = SimpleNamespace(engine=SimpleNamespace(gauging=gauging))
    known: Any = None
    figures = {"reply_tokens": num_tokens, "decode_bytes_per_s": reads}
    Gauges(known, lambda: worker).answered(figures | {"prefill_flops_per_s": computes})
    assert doubts == [True] * is_doubted


class PerChar:
    """One token a character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def test_syllables_a_token_are_counted_on_korean_text() -> None:
    sample = korean_sample()
    syllables = sum("가" <= char <= "힣" for char in sample)
    assert syllables > 2000
    found = hangul_per_token(PerChar())  # type: ignore[arg-type]
    assert found == syllables / len(sample)
    assert hangul_per_token(tiny_tokenizer()) != found
