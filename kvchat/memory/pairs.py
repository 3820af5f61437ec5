"""What each pair of formats would hold: the rows of `plan` and of the README's table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvchat.arch.spec import ModelSpec
from kvchat.memory.footprint import (
    Holding,
    footprint_of,
    kv_bytes,
    largest_context,
    paged_layers,
)
from kvchat.memory.formats import FORMATS
from kvchat.units import format_size


@dataclass(frozen=True, slots=True)
class PairRow:
    """Keys in one format, values in another. `token_bytes`: one more token, all layers, no window
    full.
    """

    key_format: str
    value_format: str
    token_bytes: int
    kv_bytes: int
    total_bytes: int
    largest_context: int


def pairs(key_format: str | None = None, value_format: str | None = None) -> list[tuple[str, str]]:
    """Every pair of formats, the most exact first; only those asked for, which may be others."""
    keys = tuple(FORMATS) if key_format is None else (key_format,)
    values = tuple(FORMATS) if value_format is None else (value_format,)
    return [(key, value) for key in keys for value in values]


def pair_rows(
    spec: ModelSpec,
    num_tokens: int,
    usable_bytes: int,
    holding: Holding,
    wanted: Iterable[tuple[str, str]],
) -> list[PairRow]:
    """One row a pair, for a text of n tokens in `usable_bytes`."""
    return [
        _row(spec, num_tokens, usable_bytes, replace(holding, key_format=k, value_format=v))
        for k, v in wanted
    ]


def _row(spec: ModelSpec, num_tokens: int, usable_bytes: int, holding: Holding) -> PairRow:
    found = footprint_of(spec, num_tokens, holding)
    return PairRow(
        holding.key_format,
        holding.value_format,
        token_bytes(spec, holding),
        found.kv_device,
        found.total,
        largest_context(spec, usable_bytes, holding),
    )


def token_bytes(spec: ModelSpec, holding: Holding) -> int:
    """Bytes of one more token in all layers, while no window is full."""
    paged = paged_layers(spec)
    bits = holding.dtype_bytes * 8
    whole = kv_bytes(spec, 1, bits, bits)
    in_blocks = sum(layer.values_per_token for layer in paged.values()) * holding.dtype_bytes
    return whole - in_blocks + sum(holding.token_bytes(layer, i) for i, layer in paged.items())


def markdown_table(
    models: Sequence[tuple[str, ModelSpec]], contexts: Sequence[int] = (4_096, 32_000, 131_072)
) -> str:
    """KV bytes of some models in 16 bits, and in int8 without and with its scales."""
    head = ["model", "KV format", "bytes a token", *(f"{n:,} tokens" for n in contexts)]
    lines = [_cells(head), _cells(["---", "---", *["---:"] * (len(contexts) + 1)])]
    for name, spec in models:
        for label, bits, kv_format in (
            ("fp16", 16, None), ("int8 without scales", 8, None), ("int8", 0, "int8"),
        ):  # fmt: skip
            sizes = [_kv(spec, n, bits, kv_format) for n in (1, *contexts)]
            lines.append(_cells([name, label, f"{sizes[0]:,}", *map(format_size, sizes[1:])]))
    return "\n".join(lines) + "\n"


def _kv(spec: ModelSpec, num_tokens: int, bits: int, kv_format: str | None) -> int:
    if kv_format is None:
        return kv_bytes(spec, num_tokens, bits, bits)
    holding = Holding(key_format=kv_format, value_format=kv_format)
    return sum(
        layer.tokens_held(num_tokens) * holding.token_bytes(layer, i)
        for i, layer in paged_layers(spec).items()
    )


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
