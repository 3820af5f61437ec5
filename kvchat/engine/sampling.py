"""Draws the next token from the logits of one position.

The order is that of Hugging Face's logits processors, so that figures published for a model hold
here too: repetition penalty, temperature, top-k, top-p, min-p. (llama.cpp cuts first and applies
the temperature last: for the same numbers it keeps fewer tokens at temperatures above 1.) Cutting
and drawing happen on the CPU, sums in float64, with a generator of our own: the same seed and
logits give the same token whatever the device. Knows nothing of tokenizers, end tokens or the reply
so far, except the ids that the penalty is told of.
"""

import math

import torch
from torch import Tensor

from kvchat.engine.events import Sampling
from kvchat.errors import ModelError

# Top-p rarely keeps more tokens than this; where it does, more are sorted.
_LIKELY_TOKENS = 1024
_COLDEST = 1e-30  # float32 would take less for 0


class Sampler:
    """One reply's sampler. `device` is where logits come from and the penalty is applied."""

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self._sampling = sampling
        self._device = device
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def draw(self, logits: Tensor, seen_ids: Tensor | None) -> int:
        """An id from logits[vocab] of any float dtype, not mutated; seen_ids[n] feed the penalty.

        Raises ModelError where the logits hold no finite maximum: NaN, +inf, or nothing but -inf.
        """
        dtype = str(logits.dtype).removeprefix("torch.")
        penalty = self._sampling.repetition_penalty
        if penalty != 1.0 and seen_ids is not None and len(seen_ids):
            logits = penalised(logits, seen_ids.to(self._device), penalty)
        # NaN counts as the greatest, so one look at the maximum finds it.
        best_id = int(logits.argmax())
        best = float(logits[best_id])
        if not math.isfinite(best):
            raise ModelError("logits_unusable", dtype=dtype)
        if self._sampling.temperature == 0:
            return best_id
        scores = logits.to("cpu", torch.float32)
        weights = ((scores - best) / max(self._sampling.temperature, _COLDEST)).exp()
        kept, ids = self._cut(weights)
        return int(ids[self._pick(kept)])

    def _cut(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Unnormalised weights[vocab], the greatest being 1 -> those that stay, and their ids."""
        top_k, top_p, min_p = self._sampling.top_k, self._sampling.top_p, self._sampling.min_p
        kept, ids = weights, torch.arange(len(weights))
        if top_k or top_p < 1.0:
            kept, ids, total = self._likeliest(weights)
            # A token stays while those before it make up less than top_p: the first one always.
            stays = kept.cumsum(0) - kept < top_p * total
            kept, ids = kept[stays], ids[stays]
        stays = kept >= min_p
        return kept[stays], ids[stays]

    def _likeliest(self, weights: Tensor) -> tuple[Tensor, Tensor, float]:
        """The top-k of weights[vocab], or enough for top-p, the greatest first; their ids; the sum
        that top-p is a share of.
        """
        top_k, top_p = self._sampling.top_k, self._sampling.top_p
        if top_k:
            kept, ids = weights.topk(min(top_k, len(weights)))
            return kept.double(), ids, float(kept.sum(dtype=torch.float64))
        total = float(weights.sum(dtype=torch.float64))
        num = min(_LIKELY_TOKENS, len(weights))
        kept, ids = weights.topk(num)
        while num < len(weights) and float(kept.sum(dtype=torch.float64)) < top_p * total:
            num = min(8 * num, len(weights))
            kept, ids = weights.topk(num)
        return kept.double(), ids, total

    def _pick(self, weights: Tensor) -> int:
        """An index in proportion to weights[n]: where a uniform number falls in their sum."""
        edges = weights.cumsum(0, dtype=torch.float64)
        place = torch.rand(1, generator=self._generator, dtype=torch.float64) * edges[-1]
        return min(int(torch.searchsorted(edges, place, right=True)), len(weights) - 1)

    def save(self) -> object:
        """The random state for `restore`: a step that failed is undone and draws the same again."""
        return self._generator.get_state()

    def restore(self, saved: object) -> None:
        assert isinstance(saved, Tensor)
        self._generator.set_state(saved)


def penalised(logits: Tensor, seen_ids: Tensor, penalty: float) -> Tensor:
    """A float32 copy of logits[vocab], seen ids less likely: divided above 0, multiplied below.

    As in CTRL (arXiv 1909.05858) and Hugging Face's processor: each seen id once, however often it
    came.
    """
    found = logits.float().clone()
    seen = found[seen_ids]
    found[seen_ids] = torch.where(seen < 0, seen * penalty, seen / penalty)
    return found
