"""What each pair of formats would hold: the rows of `plan` and of the README's table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from kvchat.arch.spec import ModelSpec
from kvchat.kvcache.blocks import geometries, shape_of
from kvchat.memory.footprint import BLOCK_TOKENS, kv_bytes
from kvchat.memory.formats import KNOWN, FormatPair
from kvchat.planner.costs import Costs
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


def pair_rows(
    costs: Costs,
    num_tokens: int,
    prefill_chunk: int,
    usable_bytes: int,
    wanted: Iterable[tuple[str, str]],
) -> list[PairRow]:
    """One row a pair, for a text of n tokens in `usable_bytes`."""
    asked = (FormatPair(KNOWN[key], KNOWN[value]) for key, value in wanted)
    return [
        _row(costs.stored_in(one), one, num_tokens, prefill_chunk, usable_bytes) for one in asked
    ]


def _row(
    costs: Costs, pair: FormatPair, num_tokens: int, prefill_chunk: int, usable_bytes: int
) -> PairRow:
    found = costs.footprint(num_tokens, prefill_chunk)
    return PairRow(
        str(pair.key),
        str(pair.value),
        round(costs.token_bytes()),
        found.kv_device,
        found.total,
        costs.largest_tokens(usable_bytes, prefill_chunk),
    )


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
    """Without sinks, hot window and whole blocks: what the tokens alone take."""
    if kv_format is None:
        return kv_bytes(spec, num_tokens, bits, bits)
    groups, pair = geometries(spec, torch.float16), FormatPair.parse(kv_format)
    return sum(
        spec.layers[layer].tokens_held(num_tokens)
        * (shape_of(group, group.served(pair)).layer_bytes // BLOCK_TOKENS)
        for group in groups
        for layer in group.layers
    )


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
