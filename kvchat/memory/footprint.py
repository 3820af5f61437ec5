"""What a model with a text takes in memory, itemised, before anything is allocated; and the
inverse.

Arithmetic on a ModelSpec. Knows no device, no pool and no tensor. KV and weights are exact;
activations are an upper estimate that the tests hold between one and two times what a forward
really keeps alive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from kvchat.arch.spec import ModelSpec
from kvchat.memory.activations import activation_bytes as activation_bytes
from kvchat.units import format_size
from kvchat.wording import Language, say

BLOCK_TOKENS = 64

# Bits of a stored value. `fp` is as computed: 16 or 32, by the dtype.
FORMAT_BITS = {"int8": 8, "int6": 6, "int5": 5, "int4": 4, "int2": 2}
FORMATS = ("fp", *FORMAT_BITS)
# Integer formats keep one fp16 scale for each token and head.
SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes by item. `kv_host` and `kv_disk` are not on the device, and so not in `total`."""

    weights: int
    kv_device: int
    kv_host: int
    kv_disk: int
    activations: int
    workspace: int
    headroom: int

    @property
    def total(self) -> int:
        """What the device must have room for, headroom included."""
        computed = self.weights + self.kv_device + self.activations + self.workspace
        return computed + self.headroom

    def table(self, lang: Language = "en") -> list[tuple[str, str]]:
        """Each item that is not zero, and the total: its name and its size, as a person reads
        them.
        """
        items = (
            "weights",
            "kv_device",
            "kv_host",
            "kv_disk",
            "activations",
            "workspace",
            "headroom",
        )
        rows = [(say(f"footprint.{i}", lang), getattr(self, i)) for i in items if getattr(self, i)]
        rows.append((say("footprint.total", lang), self.total))
        return [(name, format_size(size)) for name, size in rows]


# --- KV ---------------------------------------------------------------------------------------


def kv_bytes(spec: ModelSpec, num_tokens: int, key_bits: float, value_bits: float) -> int:
    """KV of n tokens at so many bits a value, scales apart: the sum over layers of

        tokens held * kv_heads * (key_dim * key_bits + value_dim * value_bits) / 8

    A sliding layer holds its window at most; a layer that shares another's KV holds none. Recurrent
    states do not grow with the text and are counted by `recurrent_bytes`.
    """
    bits = sum(
        layer.tokens_held(num_tokens)
        * layer.num_kv_heads
        * (layer.key_dim * key_bits + layer.value_dim * value_bits)
        for layer in spec.layers
        if layer.values_per_token
    )
    return ceil(bits / 8)


def stored_kv_bytes(
    spec: ModelSpec, num_tokens: int, key_format: str, value_format: str, dtype_bytes: int
) -> int:
    """KV of n tokens as it is stored: with scales, and whole bytes for each token and head."""
    return sum(
        layer.tokens_held(num_tokens)
        * layer.num_kv_heads
        * (
            vector_bytes(layer.key_dim, key_format, dtype_bytes)
            + vector_bytes(layer.value_dim, value_format, dtype_bytes)
        )
        for layer in spec.layers
        if layer.values_per_token
    )


def vector_bytes(dim: int, kv_format: str, dtype_bytes: int) -> int:
    """One token's key or value of one head: dim * bits / 8, and its scale."""
    if kv_format == "fp":
        return dim * dtype_bytes
    return ceil(dim * FORMAT_BITS[kv_format] / 8) + SCALE_BYTES


def block_bytes(spec: ModelSpec, group: tuple[int, ...], dtype_bytes: int) -> int:
    """One block: 64 tokens of all layers of a group."""
    return BLOCK_TOKENS * sum(spec.layers[i].values_per_token for i in group) * dtype_bytes


def recurrent_bytes(spec: ModelSpec) -> int:
    """States of all recurrent layers, at any length of text."""
    return sum(layer.recurrent_bytes for layer in spec.layers)


def hot_window_tokens(key_format: str, value_format: str) -> int:
    """The newest tokens kept as computed beside the blocks: 64 + R (DESIGN: R = 64 for int8, 256
    below).
    """
    least = min(FORMAT_BITS.get(one, 16) for one in (key_format, value_format))
    return BLOCK_TOKENS + (0 if least > 8 else 64 if least == 8 else 256)


def workspace_bytes(
    spec: ModelSpec, chunk_tokens: int, key_format: str, value_format: str, dtype_bytes: int
) -> int:
    """The hot window with the chunk in flight, and the copy of recurrent states that lets a step
    be undone.
    """
    tokens = hot_window_tokens(key_format, value_format) + chunk_tokens
    values = sum(layer.values_per_token for layer in spec.layers)
    return tokens * values * dtype_bytes + recurrent_bytes(spec)


# --- the whole --------------------------------------------------------------------------------


def footprint_of(
    spec: ModelSpec,
    num_tokens: int,
    chunk_tokens: int,
    formats: tuple[str, str] = ("fp", "fp"),
    dtype_bytes: int = 2,
    headroom: int = 0,
    device_type: str = "cuda",
) -> Footprint:
    """Everything for a text of n tokens, read in chunks, its KV stored as (key format, value
    format).
    """
    chunk = min(chunk_tokens, max(1, num_tokens))
    kv = stored_kv_bytes(spec, num_tokens, *formats, dtype_bytes)
    return Footprint(
        weights=spec.weight_bytes,
        kv_device=kv + recurrent_bytes(spec),
        kv_host=0,
        kv_disk=0,
        activations=activation_bytes(spec, chunk, max(1, num_tokens), dtype_bytes, device_type),
        workspace=workspace_bytes(spec, chunk, *formats, dtype_bytes),
        headroom=headroom,
    )


def largest_context(
    spec: ModelSpec,
    usable_bytes: int,
    chunk_tokens: int,
    formats: tuple[str, str] = ("fp", "fp"),
    dtype_bytes: int = 2,
) -> int:
    """The most tokens whose footprint is within `usable_bytes`: the exact inverse of
    `footprint_of`.

    At most what the model can read; 0 where not even one token fits. Footprints grow with the
    text, so halving finds the very last token that fits.
    """

    def fits(num_tokens: int) -> bool:
        return (
            footprint_of(spec, num_tokens, chunk_tokens, formats, dtype_bytes).total <= usable_bytes
        )

    return last_that_fits(fits, spec.max_positions)


def last_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """The largest n of 1..most with fits(n), where fits turns false once and for all; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
