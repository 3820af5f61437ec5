"""What a model with a text takes in memory, by item, and what its KV alone takes.

Arithmetic on a ModelSpec; of texts as they are really held, in blocks and formats, see
planner/costs.py. Knows no device, no pool and no tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.memory.activations import activation_bytes as activation_bytes
from kvchat.memory.formats import BLOCK_TOKENS as BLOCK_TOKENS
from kvchat.units import format_size
from kvchat.wording import Language, say


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

    A sliding layer holds its window at most; a layer that shares another's KV holds none; a
    recurrent layer's states do not grow with the text and are not in it.
    """
    bits = sum(
        len(numbers)
        * layer.tokens_held(num_tokens)
        * layer.num_kv_heads
        * (layer.key_dim * key_bits + layer.value_dim * value_bits)
        for layer, numbers in alike(spec.layers)
        if layer.values_per_token
    )
    return ceil(bits / 8)


@lru_cache(maxsize=256)
def alike(layers: tuple[LayerSpec, ...]) -> tuple[tuple[LayerSpec, tuple[int, ...]], ...]:
    """Each different layer with the numbers of all that are like it: large models have few."""
    found: dict[LayerSpec, list[int]] = {}
    for number, layer in enumerate(layers):
        found.setdefault(layer, []).append(number)
    return tuple((layer, tuple(numbers)) for layer, numbers in found.items())


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
