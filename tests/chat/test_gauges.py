"""What the cache tab asks for, from a real program with its own small model."""

from pathlib import Path

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.gauges import hangul_per_token, korean_sample
from kvchat.errors import StoreError
from kvchat.settings import Settings, changed
from tests.tiny import tiny_folder, tiny_tokenizer


@pytest.fixture
def talks(tmp_path: Path) -> Conversations:
    folder = tiny_folder("llama", tmp_path / "model")
    made = {"model": str(folder), "max_new_tokens": 12, "temperature": 0.0}
    settings = changed(Settings(), made)
    return Conversations(settings, tmp_path / "data")


def test_figures_of_all_turns_timeline_and_ceilings(talks: Conversations) -> None:
    try:
        talks.wait_ready(120)
        chat = talks.new_chat()
        for text in ("one", "two"):
            assert talks.ask(chat, text).wait_ended(120)
        rows = talks.gauges.turns(chat)
        assert [row["turn"] for row in rows] == [1, 2]
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
