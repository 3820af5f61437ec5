"""What is known of speed and memory beyond the moment: figures of all turns, the timeline of the
device, what the device can do at best, and how many letters a token of this model holds.

Measures nothing itself; asked when a page wants it, not with every frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvchat.chat.known import KnownChats
from kvchat.chat.reach import letters_per_token
from kvchat.engine.timeline import COLUMNS
from kvchat.engine.worker import Worker
from kvchat.wording import table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kvchat.device.ceilings import Ceilings
    from kvchat.engine.engine import Engine

_SAMPLE_CHARS = 6_000
_FIRST_HANGUL, _LAST_HANGUL = "가", "힣"


class Gauges:
    """`hangul_per_token`: see the function; `letters_per_token`: of English. None before a model is
    loaded.
    """

    def __init__(self, known: KnownChats, worker: Callable[[], Worker]) -> None:
        self._known = known
        self._worker = worker
        self.hangul_per_token: float | None = None
        self.letters_per_token: float | None = None

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Of the model that was loaded: counts how much its tokens hold, which takes some ten
        milliseconds, so not when a frame is made.
        """
        self.hangul_per_token = hangul_per_token(tokenizer)
        self.letters_per_token = letters_per_token(tokenizer, "en")

    def turns(self, chat: str) -> list[dict[str, Any]]:
        """Of every turn of the branch that is shown: its number, its name, whether it is pinned,
        and its figures, None where there is no reply yet. Raises StoreError.
        """
        return [
            {
                "turn": one.turn,
                "name": one.user_hash,
                "pinned": one.pinned,
                "left_out": one.left_out,
                "figures": one.figures,
            }
            for one in self._known.of(chat).exchanges
        ]

    def timeline(self) -> dict[str, Any]:
        """Memory of the last minutes: names of columns, and a row a point of time, oldest first."""
        return {"columns": COLUMNS, "points": self._worker().timeline.points()}

    def ceilings(self) -> dict[str, Any]:
        """What the device can do at best as it was measured, None before; and whether it is being
        measured.
        """
        gauging = self._gauging
        if gauging is None:
            return {"stage": "waiting", "measured": None}
        kept = gauging.kept
        return {"stage": gauging.stage, "measured": kept.row() if kept is not None else None}

    def answered(self, figures: Mapping[str, Any] | None) -> None:
        """Of an answer that was just kept: a ceiling that it exceeded is measured anew."""
        gauging = self._gauging
        kept = gauging.kept if gauging is not None else None
        if kept is not None and figures is not None and _exceeds(figures, kept.ceilings):
            gauging.doubt()

    def measure_again(self) -> dict[str, Any]:
        """The device is measured anew as soon as nothing is asked."""
        gauging = self._gauging
        if gauging is not None:
            gauging.again()
        return self.ceilings()

    @property
    def _gauging(self) -> Any:
        engine: Engine | None = self._worker().engine
        return engine.gauging if engine is not None else None


def _exceeds(figures: Mapping[str, Any], known: Ceilings) -> bool:
    computed = figures.get("prefill_flops_per_s") or 0.0
    read = (figures.get("decode_bytes_per_s") or 0.0) if figures["reply_tokens"] > 1 else 0.0
    return computed > known.flops_per_s or read > known.bytes_per_s


def korean_sample() -> str:
    """Korean sentences that kvchat itself ships, without the places that are filled in."""
    sentences = (entry["ko"] for code, entry in sorted(table().items()) if "{" not in entry["ko"])
    return "\n".join(sentences)[:_SAMPLE_CHARS]


def hangul_per_token(tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Hangul syllables / tokens of a Korean sample; None where the tokenizer makes nothing of it.

    A text of so many syllables has spaces and signs as well, which take tokens, too: so they are in
    the sample, and only syllables are counted.
    """
    sample = korean_sample()
    num_tokens = len(tokenizer.encode(sample, add_special_tokens=False))
    num_hangul = sum(_FIRST_HANGUL <= char <= _LAST_HANGUL for char in sample)
    return num_hangul / num_tokens if num_tokens and num_hangul else None
