"""What a model with a text takes in memory, itemised, before anything is allocated; and the
inverse.

Arithmetic on a ModelSpec. Knows no device, no pool and no tensor. KV and weights are exact;
activations are an upper estimate that the tests hold between one and two times what a forward
really keeps alive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.memory.activations import activation_bytes as activation_bytes
from kvchat.memory.formats import BLOCK_TOKENS as BLOCK_TOKENS
from kvchat.memory.formats import KNOWN, FormatPair, stored_pair, vector_bytes
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


def block_bytes(spec: ModelSpec, group: tuple[int, ...], dtype_bytes: int) -> int:
    """One block: 64 tokens of all layers of a group."""
    return BLOCK_TOKENS * sum(spec.layers[i].values_per_token for i in group) * dtype_bytes


# --- how a text is held -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holding:
    """How a text is read and kept: the chunk, the formats of its blocks, the dtype, the device.

    `sink_tokens`: the first ones, whose blocks stay as computed. `least`: layers by number, and the
    lowest pair that each is stored in. `newest_tokens`: at least so many stay as computed.
    """

    chunk_tokens: int = 512
    key_format: str = "fp"
    value_format: str = "fp"
    dtype_bytes: int = 2
    device_type: str = "cuda"
    sink_tokens: int = 0
    least: Mapping[int, FormatPair] = field(default_factory=dict)
    newest_tokens: int = 0

    @property
    def formats(self) -> FormatPair:
        return FormatPair(KNOWN[self.key_format], KNOWN[self.value_format])

    @property
    def hot_tokens(self) -> int:
        """The newest tokens, kept as computed: 64 + R."""
        return BLOCK_TOKENS + self.recent_tokens

    @property
    def recent_tokens(self) -> int:
        """R: what the formats ask for, or more; 0 where nothing is lost by them."""
        least, wanted = self.formats.hot_tokens, -(-self.newest_tokens // BLOCK_TOKENS)
        return max(least, wanted * BLOCK_TOKENS) if least else 0

    def token_bytes(self, layer: LayerSpec, number: int) -> int:
        """One token of one layer, the model's `number`-th, as its blocks store it."""
        least = self.least.get(number)
        pair = stored_pair(self.formats, layer.key_dim, layer.value_dim, least)
        key = vector_bytes(layer.key_dim, pair.key, self.dtype_bytes)
        value = vector_bytes(layer.value_dim, pair.value, self.dtype_bytes)
        return layer.num_kv_heads * (key + value)

    def block_bytes(self, layer: LayerSpec, number: int, num_blocks: int) -> int:
        """So many blocks of one layer, those of the text's first tokens as computed."""
        plain = min(num_blocks, ceil(self.sink_tokens / BLOCK_TOKENS))
        stored = (num_blocks - plain) * self.token_bytes(layer, number)
        return BLOCK_TOKENS * (plain * layer.values_per_token * self.dtype_bytes + stored)


def paged_layers(spec: ModelSpec) -> dict[int, LayerSpec]:
    """By number the layers whose KV lies in blocks. Latent and recurrent ones and those whose KV
    other layers read as well stay the library's own: always as computed, whatever the formats.
    """
    return _paged(spec.layers)


def _paged(layers: tuple[LayerSpec, ...]) -> dict[int, LayerSpec]:
    lent = {layer.shares_with for layer in layers}
    return {
        i: layer
        for i, layer in enumerate(layers)
        if layer.kind in ("full", "sliding") and layer.values_per_token and i not in lent
    }


def blocks_held(layer: LayerSpec, num_tokens: int, chunk_tokens: int) -> int:
    """Whole blocks of 64 tokens: all, or ceil((window + chunk) / 64) + 1."""
    num_blocks = max(0, num_tokens) // BLOCK_TOKENS
    if layer.window is not None:
        num_blocks = min(num_blocks, -(-(layer.window + chunk_tokens) // BLOCK_TOKENS) + 1)
    return num_blocks


def footprint_of(
    spec: ModelSpec, num_tokens: int, holding: Holding, headroom: int = 0
) -> Footprint:
    """Everything on the device when a text of n tokens has just been read.

    weights        as the spec says
    kv_device      blocks of every paged layer; the library's own layers twice, since they grow by
                   copying and their states are copied before each step, so that it can be undone
    activations    see activations.py
    workspace      the hot window and the chunk in flight, of every paged layer, as computed
    """
    chunk = min(holding.chunk_tokens, max(1, num_tokens))
    paged, sealed = _paged_alike(spec.layers), num_tokens - holding.recent_tokens
    in_blocks = sum(
        count * holding.block_bytes(layer, number, blocks_held(layer, sealed, chunk))
        for layer, numbers in paged
        for number, count in _by_least(numbers, holding.least)
    )
    bits = holding.dtype_bytes * 8
    own = kv_bytes(spec, num_tokens, bits, bits) - sum(
        len(numbers) * layer.tokens_held(num_tokens) * layer.values_per_token * holding.dtype_bytes
        for layer, numbers in paged
    )
    values = sum(len(numbers) * layer.values_per_token for layer, numbers in paged)
    per_token = values * holding.dtype_bytes
    return Footprint(
        weights=spec.weight_bytes,
        kv_device=in_blocks + 2 * (own + sum(layer.recurrent_bytes for layer in spec.layers)),
        kv_host=0,
        kv_disk=0,
        activations=activation_bytes(
            spec,
            chunk,
            max(1, num_tokens),
            holding.dtype_bytes,
            holding.device_type,
            {holding.key_format, holding.value_format} != {"fp"},
        ),
        workspace=(holding.hot_tokens + chunk) * per_token,
        headroom=headroom,
    )


@lru_cache(maxsize=256)
def _paged_alike(layers: tuple[LayerSpec, ...]) -> tuple[tuple[LayerSpec, tuple[int, ...]], ...]:
    paged = _paged(layers)
    found = ((layer, tuple(i for i in numbers if i in paged)) for layer, numbers in alike(layers))
    return tuple((layer, numbers) for layer, numbers in found if numbers)


def _by_least(numbers: tuple[int, ...], least: Mapping[int, FormatPair]) -> list[tuple[int, int]]:
    """A layer of each lowest pair, and how many have that pair."""
    if not least:
        return [(numbers[0], len(numbers))]
    found: dict[FormatPair | None, list[int]] = {}
    for number in numbers:
        found.setdefault(least.get(number), []).append(number)
    return [(those[0], len(those)) for those in found.values()]


def largest_context(spec: ModelSpec, usable_bytes: int, holding: Holding) -> int:
    """The most tokens whose footprint is within `usable_bytes`: the inverse of `footprint_of`,
    exact.

    At most what the model can read; 0 where not even one token fits. A footprint never shrinks as
    the text grows, so halving finds the very last token that fits.
    """
    return last_that_fits(
        lambda tokens: footprint_of(spec, tokens, holding).total <= usable_bytes,
        spec.max_positions,
    )


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
