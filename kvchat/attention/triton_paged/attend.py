"""Launches the Triton kernels for one layer: a decode step, or a prefill chunk.

One launch a format pair and one for the hot window; then the partial results are merged by
log-sum-exp, those of quantized values turned back by the rotation (see kvcache/quantize.py). No
launch waits for the device, and none depends on how many blocks there are. Only where
`table.why_not` has nothing against it. Imports Triton.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.attention.backend import LayerKV, Scoring
from kvchat.attention.triton_paged import kernels
from kvchat.attention.triton_paged.standing import Room
from kvchat.attention.triton_paged.table import LayerTable, SealedBlocks
from kvchat.kvcache.quantize import rotation
from kvchat.memory.formats import FormatPair, part_bytes

_LOG2E = 1.4426950408889634
_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


def attend(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    """See `backend.Attend`; for layers that have a table."""
    table = kv.table
    own = query.to(table.hot.keys.dtype)
    if query.shape[2] > 1:
        return attend_prefill(own, table, scoring).transpose(1, 2).to(query.dtype)
    room = kv.room(own, rotated_dtype(own.dtype))
    out = own.new_empty(1, 1, query.shape[1], table.hot.values.shape[2])
    attend_decode(own, table, scoring, room, out)
    return out.to(query.dtype)


def attend_decode(
    query: Tensor, table: LayerTable, scoring: Scoring, work: Room, out: Tensor
) -> None:
    """One token's queries over all that the table holds. query [1, heads, 1, key_dim]; writes `out`
    [1, 1, heads, value_dim], contiguous, and the workspace.
    """
    _, heads, _, key_dim = query.shape
    value_dim = out.shape[3]
    launch = Launch.of(query, table, scoring)
    plain = _plain(query).contiguous().view(heads, key_dim)
    if any(blocks.pair.key.bits is not None for blocks in table.sealed):
        matrix = rotation(key_dim, query.device, torch.float32)
        kernels.rotate[(heads,)](
            plain, work.rotated, matrix, dim=key_dim, wide=triton.next_power_of_2(key_dim)
        )
    ordered = sorted(table.sealed, key=lambda blocks: blocks.pair.value.bits is None)
    done = 0
    for blocks in ordered:
        own = slice(done, done + work.splits)
        q = plain if blocks.pair.key.bits is None else work.rotated
        launch.blocks(q, blocks, work.out[own], work.sums[own], goes_on=False)
        done = own.stop
    own = slice(done, done + work.hot_splits)
    launch.hot(plain, work.out[own], work.sums[own], goes_on=False)
    num_rotated = sum(blocks.pair.value.bits is not None for blocks in ordered) * work.splits
    kernels.merge[(heads,)](
        work.out,
        work.sums,
        work.sums if scoring.sinks is None else scoring.sinks,
        rotation(value_dim, query.device, torch.float32),
        out,
        own.stop,
        num_rotated,
        heads,
        parts_wide=triton.next_power_of_2(own.stop),
        dim=value_dim,
        wide=triton.next_power_of_2(value_dim),
        has_sinks=scoring.sinks is not None,
    )


def attend_prefill(query: Tensor, table: LayerTable, scoring: Scoring) -> Tensor:
    """A chunk's queries over all that the table holds, each up to its own token.

    query [1, heads, C, key_dim] -> fp32 out [1, heads, C, value_dim].
    """
    _, heads, tokens, key_dim = query.shape
    value_dim = table.hot.values.shape[2]
    launch = Launch.of(query, table, scoring)
    plain = _plain(query).contiguous().view(heads, tokens, key_dim)
    rotated = plain
    if any(blocks.pair.key.bits is not None for blocks in table.sealed):
        matrix = rotation(key_dim, query.device, torch.float32)
        rotated = (plain.float() @ matrix).to(rotated_dtype(query.dtype))
    parts: dict[bool, tuple[Tensor, Tensor]] = {}

    def part(is_rotated: bool) -> tuple[Tensor, Tensor]:
        if is_rotated not in parts:
            sums = query.new_full((1, heads, tokens), -torch.inf, dtype=torch.float32)
            parts[is_rotated] = (sums.new_zeros(1, heads, tokens, value_dim), sums)
        return parts[is_rotated]

    for blocks in table.sealed:
        q = plain if blocks.pair.key.bits is None else rotated
        launch.blocks(q, blocks, *part(blocks.pair.value.bits is not None), goes_on=True)
    launch.hot(plain, *part(False), goes_on=True)
    if True in parts:
        out, sums = parts[True]
        parts[True] = (out @ rotation(value_dim, query.device, torch.float32), sums)
    return _joined(list(parts.values()), scoring.sinks)


def _joined(parts: list[tuple[Tensor, Tensor]], sinks: Tensor | None) -> Tensor:
    """Partial results over disjoint tokens as one: out [1, heads, C, dim], each with its natural
    log-sum-exp [1, heads, C]. `sinks` [heads] take their share of the softmax and add nothing.
    """
    sums = torch.stack([part[1] for part in parts])
    total = torch.logsumexp(sums, dim=0)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.float().reshape(1, -1, 1))
    # Where nothing was seen, -inf less -inf is no number, and the share is 0.
    shares = (sums - total).exp_().nan_to_num_(nan=0.0).unsqueeze(-1)
    out = parts[0][0] * shares[0]
    for (other, _), share in zip(parts[1:], shares[1:], strict=True):
        out = torch.addcmul(out, other, share)
    return out


def _is_exact(dtype: torch.dtype) -> bool:
    """Whether dots are in fp32: for fp32 itself, and for bf16 in the interpreter, whose dots take
    the bits of a bf16 for an integer.
    """
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(triton.knobs.runtime.interpret)
    )


def rotated_dtype(dtype: torch.dtype) -> torch.dtype:
    """Codes are exact in fp16, so rotated queries are fp16 for bf16 models too."""
    return torch.float32 if _is_exact(dtype) else torch.float16


def _plain(query: Tensor) -> Tensor:
    return query.float() if _is_exact(query.dtype) else query


def _tile(num_rows: int, wide: int) -> dict[str, int]:
    """Query rows of a program, its warps, and the registers that a thread may have.

    The largest tiles that spill nothing. The registers are said because ptxas, left alone, spilled
    a few of 64 to fit one more program; 168 leaves room for three programs of a decode step.
    """
    if num_rows <= 16:
        rows, warps, registers = (16, 4, 168) if wide <= 128 else (16, 8, 128)
    else:
        rows, warps, registers = (128, 8, 255) if wide <= 128 else (32, 8, 255)
    return {"rows": rows, "num_warps": warps, "maxnreg": registers}


@dataclass(frozen=True, slots=True)
class Launch:
    """What all launches of one layer have in common."""

    table: LayerTable
    numbers: tuple[int | float, ...]  # num_rows, num_tokens, scale, cap, window
    options: dict[str, Any]
    row_tiles: int
    fp: torch.dtype

    @classmethod
    def of(cls, query: Tensor, table: LayerTable, scoring: Scoring) -> "Launch":
        _, heads, tokens, key_dim = query.shape
        value_dim = table.hot.values.shape[2]
        num_rows = heads // table.hot.keys.shape[0] * tokens
        wide = [triton.next_power_of_2(dim) for dim in (key_dim, value_dim)]
        tile = _tile(num_rows, max(wide))
        cap = scoring.softcap
        scale = scoring.scale * _LOG2E if cap is None else scoring.scale / cap
        numbers = (num_rows, tokens, scale, (cap or 0.0) * _LOG2E, table.window or 0)
        options = {
            "key_dim": key_dim,
            "value_dim": value_dim,
            "key_wide": wide[0],
            "value_wide": wide[1],
            **tile,
            "softcap": cap is not None,
            "windowed": table.window is not None,
            "exact": _is_exact(query.dtype),
            # One stage: several programs a processor hide the waiting, a second buffer of a tile
            # would take the shared memory that they need.
            "num_stages": 1,
            "enable_fp_fusion": True,
        }
        return cls(table, numbers, options, -(-num_rows // tile["rows"]), query.dtype)

    def blocks(
        self, query: Tensor, blocks: SealedBlocks, out: Tensor, sums: Tensor, goes_on: bool
    ) -> None:
        kv_heads = self.table.hot.keys.shape[0]
        kernels.attend_blocks[(self.row_tiles, kv_heads, out.shape[0])](
            query,
            out,
            sums,
            blocks.addresses,
            blocks.positions,
            blocks.count,
            self.table.query_position,
            blocks.layer_offset,
            *self.numbers,
            **self.options,
            **block_options(
                blocks.pair, self.options["key_dim"], self.options["value_dim"], self.fp
            ),
            goes_on=goes_on,
        )

    def hot(self, query: Tensor, out: Tensor, sums: Tensor, goes_on: bool) -> None:
        hot = self.table.hot
        kernels.attend_hot[(self.row_tiles, hot.keys.shape[0], out.shape[0])](
            query,
            out,
            sums,
            hot.keys,
            hot.values,
            hot.span,
            self.table.query_position,
            *hot.keys.stride()[:2],
            *hot.values.stride()[:2],
            *self.numbers,
            **self.options,
            causal=self.numbers[1] > 1,
            goes_on=goes_on,
        )


def block_options(
    pair: FormatPair, key_dim: int, value_dim: int, fp: torch.dtype
) -> dict[str, Any]:
    """What `kernels.attend_blocks` is compiled for, of the blocks' layout."""
    return {
        "key_format": pair.key.name,
        "value_format": pair.value.name,
        "key_part": part_bytes(key_dim, pair.key, fp.itemsize),
        "value_part": part_bytes(value_dim, pair.value, fp.itemsize),
        "fp": _DTYPES[fp],
    }
