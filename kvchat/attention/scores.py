"""How much attention each block of a text gets: the mass of a few queries over its sealed blocks.

Beside an ordinary forward, in plain torch, a tile at a time: for steps in which it is wanted, one
in 64. What a block got lately foretells what it will get (H2O, Zhang et al. 2023). Layers with a
window have no say: nothing is evicted from them.
"""

import torch
from torch import Tensor

from kvchat.attention.backend import LayerKV, Scoring
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS

NUM_QUERIES = 4  # of a chunk's newest
KEPT = 0.5  # of what was seen before, at each new look


class Mass:
    """Of one forward over a sequence: sums over its layers, heads and queries."""

    def __init__(self, sequence: Sequence) -> None:
        full = (
            table
            for table, geometry in zip(sequence.tables, sequence.pool.geometries, strict=True)
            if geometry.window is None
        )
        self._places = [i for i, block in enumerate(next(full, [])) if block is not None]
        self._total = torch.zeros(len(self._places), device=sequence.pool.device)

    def add(self, query: Tensor, kv: LayerKV, scoring: Scoring) -> None:
        """query [1, heads, C, key_dim]. The softmax leaves out the chunk in flight, which changes
        no block's part of what the others get.
        """
        if not self._places:
            return
        queries = query[0, :, -NUM_QUERIES:].float()
        blocks = [one for keys, _ in kv.tiles() for one in _by_block(queries, keys, scoring)]
        weights = torch.stack(blocks, dim=-1).softmax(-1)[..., : len(self._places)]
        self._total += weights.sum((0, 1))

    def after(self, before: dict[int, float]) -> dict[int, float]:
        """By place, with what is still worth of what was seen before. Waits for the device."""
        seen = zip(self._places, self._total.tolist(), strict=True)
        return {place: mass + KEPT * before.get(place, 0.0) for place, mass in seen}


def _by_block(queries: Tensor, keys: Tensor, scoring: Scoring) -> list[Tensor]:
    """What the softmax makes of each block's scores together: logarithms [heads, C] of the sums."""
    scores = _scores(queries, keys, scoring)
    return [part.logsumexp(-1) for part in scores.split(BLOCK_TOKENS, dim=-1)]


def _scores(queries: Tensor, keys: Tensor, scoring: Scoring) -> Tensor:
    """queries [heads, C, D], keys [kv_heads, T, D] -> [heads, C, T], in fp32."""
    grouped = queries.unflatten(0, (keys.shape[0], -1)).flatten(1, 2)
    scores = (grouped @ keys.float().transpose(1, 2)) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    each: Tensor = scores.unflatten(1, (-1, queries.shape[1])).flatten(0, 1)
    return each
