"""Ways to keep what a model has read, each of which answers with the next token's logits.

A pair of formats is the product itself (engine/fidelity.py): its blocks, hot window and attention.
The others are what people use elsewhere, over the same weights, as plain arithmetic in torch:
llama.cpp's q8_0 and q4_0 (groups of 32 along a vector, one fp16 scale each), q4_0 after a rotation,
and the library's own quantized cache (optimum-quanto). Knows no text and no score.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, QuantizedCache

from kvchat.attention.hf_seam import use_library_attention
from kvchat.engine.engine import Engine
from kvchat.engine.fidelity import PairReader, Reader
from kvchat.errors import SettingsError
from kvchat.kvcache.quantize import rotation
from kvchat.memory.formats import KNOWN, FormatPair

_GROUP = 32


class LibraryReader:
    """The library's loop over a cache of its kind."""

    def __init__(self, engine: Engine, name: str, bits: float, cache: Any) -> None:
        self.name, self.bits, self.cache = name, bits, cache
        self._model: Any = engine.loaded.model
        self._device = engine.loaded.device

    @torch.inference_mode()
    def read(self, token_ids: Sequence[int], num_last: int) -> Tensor:
        ids = torch.tensor([token_ids], device=self._device)
        with use_library_attention(self._model):
            found = self._model(
                input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=num_last
            )
        logits: Tensor = found.logits[0]
        return logits


class _Rounded(DynamicCache):
    """Keeps vectors as `rounded` leaves them. Those of the chunk in flight are attended to as
    computed: gentler than llama.cpp, which reads back what it has just stored and loses several
    times as much in this measure, but what the formats beside it are given too.
    """

    def __init__(self, config: Any, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config=config)
        self._rounded = rounded

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = (self._by_rows(x) for x in (key_states, value_states))
        kept = super().update(keys, values, *args, **kwargs)
        all_keys, all_values = (x.clone() for x in kept)
        all_keys[:, :, -keys.shape[2] :] = key_states
        all_values[:, :, -values.shape[2] :] = value_states
        return all_keys, all_values

    def _by_rows(self, x: Tensor) -> Tensor:
        """[1, heads, tokens, D], rounded token by token."""
        return self._rounded(x.transpose(1, 2)).transpose(1, 2)


def _groups(x: Tensor) -> Tensor:
    """[..., heads, D] -> [..., heads * D / 32, 32] in fp32: all heads of a token are one row."""
    rows: Tensor = x.float().flatten(-2).unflatten(-1, (-1, _GROUP))
    return rows


def q8_0(x: Tensor) -> Tensor:
    """x [..., heads, D] -> what llama.cpp's q8_0 keeps of it: scale = absmax / 127 in fp16."""
    groups = _groups(x)
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
    codes = (groups / scale).nan_to_num_().round_().clamp_(-127, 127)
    return (codes * scale).reshape(x.shape).to(x.dtype)


def q4_0(x: Tensor) -> Tensor:
    """x [..., heads, D] -> what q4_0 keeps of it: the largest becomes -8 of codes from -8 to 7."""
    groups = _groups(x)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = (largest / -8).half().float()
    codes = (groups / scale).nan_to_num_().add_(8.5).floor_().clamp_(0, 15) - 8
    return (codes * scale).reshape(x.shape).to(x.dtype)


def rotated_q4_0(x: Tensor) -> Tensor:
    """q4_0 of the rotated vector, rotated back: what comes of it where queries are rotated too."""
    turn = rotation(x.shape[-1], x.device, torch.float32)
    return (q4_0(x.float() @ turn) @ turn).to(x.dtype)


_ROUNDED: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "q8_0": (8.5, q8_0),
    "q4_0": (4.5, q4_0),
    "q4_0-rotated": (4.5, rotated_q4_0),
}
_QUANTO = "quanto-int4"
PEERS = (*_ROUNDED, _QUANTO)


def make_reader(engine: Engine, name: str) -> Reader:
    """A pair of formats, as `int6/int4`, or one of PEERS. Raises SettingsError."""
    config = engine.loaded.model.config
    if name in _ROUNDED:
        bits, rounded = _ROUNDED[name]
        if any(one.num_kv_heads * one.key_dim % _GROUP for one in engine.pool.geometries):
            raise SettingsError("bench_peer", name=name)
        return LibraryReader(engine, name, bits, _Rounded(config, rounded))
    if name != _QUANTO:
        return PairReader(engine, parse_pair(name))
    cache = quanto_cache(engine)
    # For each group of 64 it keeps a scale and a shift in the model's own dtype.
    bits = 4 + 2 * 8 * engine.loaded.dtype.itemsize / 64
    return LibraryReader(engine, name, bits, cache)


def quanto_cache(engine: Engine) -> Any:
    """The library's own quantized cache, in 4 bits. Raises SettingsError where it cannot serve."""
    try:
        return QuantizedCache("quanto", engine.loaded.model.config, nbits=4)
    except (ImportError, ValueError):  # not installed, or a model with sliding layers
        raise SettingsError("bench_peer", name=_QUANTO) from None


def parse_pair(name: str) -> FormatPair:
    names = [part.strip() for part in name.split("/")]
    if len(names) > 2 or not all(part in KNOWN for part in names):
        raise SettingsError("bench_pair", name=name, known=", ".join((*KNOWN, *PEERS)))
    return FormatPair.parse(name)
