"""How keys and values may be stored: names, bits, planes, exact bytes, and which is the more exact.

Arithmetic on numbers alone: knows no tensor, no model and no block. The formats are those of
DESIGN.md §12: a rotated vector, one fp16 scale for each token and head (QuaRot's rotation, KIVI's
idea that keys and values want different bits). Beside them stand those of optimum-quanto, which are
stored and read like any other, for comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Self

from kvchat.errors import SettingsError
from kvchat.settings_layers import parse_layers

BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class KVFormat:
    """One way to store a vector.

    `planes`: the bits of each part that a code is split into, the high bits first. `bits` is None
    for `fp`, which stores values as computed: 16 or 32 bits, by the dtype. `group`: so many values
    that follow each other share a scale and a shift in the dtype, and nothing is rotated
    (optimum-quanto); None: a vector has one scale.
    """

    name: str
    bits: int | None
    planes: tuple[int, ...]
    scale_bytes: int = 2
    group: int | None = None

    def __str__(self) -> str:
        return self.name

    def serves(self, dim: int) -> bool:
        """Whether vectors of this size can be stored: whole bytes in every plane, and of scales."""
        return self.bits is None or dim % (8 if self.group is None else 16) == 0

    def scales_bytes(self, dim: int, dtype_bytes: int) -> int:
        """A vector's scale, or its share of those of its groups."""
        if self.group is None:
            return self.scale_bytes
        return dim * 2 * dtype_bytes // self.group


# The most exact first, by the divergence measured from the uncompressed run (DESIGN.md §12): fp8
# loses more than int6 although it is larger.
FORMATS: Mapping[str, KVFormat] = {
    one.name: one
    for one in (
        KVFormat("fp", None, (), scale_bytes=0),
        KVFormat("int8", 8, (8,)),
        KVFormat("int6", 6, (4, 2)),
        KVFormat("fp8", 8, (8,)),
        KVFormat("int5", 5, (4, 1)),
        KVFormat("int4", 4, (4,)),
        KVFormat("int2", 2, (2,)),
    )
}
# optimum-quanto's of the library's quantized cache: no kernel reads them, and nothing offers them.
QUANTO: Mapping[str, KVFormat] = {
    one.name: one
    for one in (
        KVFormat("quanto4", 4, (4,), group=64),
        KVFormat("quanto2", 2, (2,), group=64),
    )
}
KNOWN: Mapping[str, KVFormat] = {**FORMATS, **QUANTO}
_LOSS = {
    name: place
    for place, name in enumerate(
        ("fp", "int8", "int6", "fp8", "int5", "int4", "quanto4", "int2", "quanto2")
    )
}


def vector_bytes(dim: int, fmt: KVFormat, dtype_bytes: int) -> int:
    """One token's key or value of one head: dim * bits / 8 in whole bytes, and its scales."""
    bits = dtype_bytes * 8 if fmt.bits is None else fmt.bits
    return ceil(dim * bits / 8) + fmt.scales_bytes(dim, dtype_bytes)


def part_bytes(dim: int, fmt: KVFormat, dtype_bytes: int) -> int:
    """The keys, or the values, of one block's 64 tokens of one head: 64 * dim * bits / 8 + 128;
    in groups of 64 values 64 * dim * bits / 8 + dim * 2 * bytes of a value.
    """
    return BLOCK_TOKENS * vector_bytes(dim, fmt, dtype_bytes)


@dataclass(frozen=True, slots=True)
class FormatPair:
    """Keys in one format, values in another; written `int6/int4`."""

    key: KVFormat
    value: KVFormat

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `int6/int4`; one name alone stands for both. Raises SettingsError."""
        names = [name.strip() for name in text.split("/")]
        if len(names) > 2 or not all(name in KNOWN for name in names):
            raise SettingsError("kv_format", text=text, known=", ".join(FORMATS))
        return cls(KNOWN[names[0]], KNOWN[names[-1]])

    def __str__(self) -> str:
        return f"{self.key}/{self.value}"

    @property
    def is_offered(self) -> bool:
        """Whether it is for use, not for comparison only."""
        return {self.key.name, self.value.name} <= FORMATS.keys()

    def at_least(self, other: "FormatPair") -> bool:
        """Whether both keys and values are as exact as the other's, or more."""
        return lower_of(self, other) == other

    @property
    def hot_tokens(self) -> int:
        """R: how many of the newest tokens stay as computed, beside the 64 that fill the next
        block. 0 where nothing is lost, 64 where little is, else 256.
        """
        least = _lower(self.key, self.value).name
        return {"fp": 0, "int8": 64}.get(least, 256)


def pairs(key_format: str | None = None, value_format: str | None = None) -> list[tuple[str, str]]:
    """Every pair of formats, the most exact first; only those asked for, which may be others."""
    keys = tuple(FORMATS) if key_format is None else (key_format,)
    values = tuple(FORMATS) if value_format is None else (value_format,)
    return [(key, value) for key in keys for value in values]


# What no pair is below: any will do.
LEAST = FormatPair(QUANTO["quanto2"], QUANTO["quanto2"])


def stored_pair(
    wanted: FormatPair, key_dim: int, value_dim: int, least: FormatPair | None = None
) -> FormatPair:
    """What vectors of these sizes are stored in where `wanted` is asked for: not below `least`,
    keys and values apart, and `fp` where they cannot be stored otherwise.
    """
    pair = wanted if least is None else better_of(wanted, least)
    key, value, fp = pair.key, pair.value, FORMATS["fp"]
    return FormatPair(key if key.serves(key_dim) else fp, value if value.serves(value_dim) else fp)


def layer_pairs(text: str, num_layers: int) -> dict[int, FormatPair]:
    """The setting `layer_formats` for a model: its layers and the lowest pairs that they are ever
    stored in. Raises SettingsError.
    """
    return {
        number: FormatPair(KNOWN[one.key], KNOWN[one.value])
        for one in parse_layers(text)
        for number in one.numbers(num_layers)
    }


def lower_of(one: FormatPair, other: FormatPair) -> FormatPair:
    """The less exact of both for keys, and the less exact of both for values."""
    return FormatPair(_lower(one.key, other.key), _lower(one.value, other.value))


def better_of(one: FormatPair, other: FormatPair) -> FormatPair:
    """The more exact of both for keys, and the more exact of both for values."""
    return FormatPair(_better(one.key, other.key), _better(one.value, other.value))


def _lower(one: KVFormat, other: KVFormat) -> KVFormat:
    return max(one, other, key=lambda fmt: _LOSS[fmt.name])


def _better(one: KVFormat, other: KVFormat) -> KVFormat:
    return min(one, other, key=lambda fmt: _LOSS[fmt.name])
