"""What the decode kernels read in a second, beside a copy on the same card: rows for `just gpu`.

One layer of the Llama 3 8B geometry at 32,768 tokens, in a CUDA graph, so that nothing but the
kernels is timed. Needs an NVIDIA card.
"""

import torch
import triton

from kvchat.attention.triton_paged import attend
from kvchat.attention.triton_paged.standing import Room
from kvchat.attention.triton_paged.table import num_splits
from kvchat.bench.attention import copied_per_s
from kvchat.device.cuda import num_processors
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, part_bytes
from tests.attention.blocks import Case, build
from tests.attention.test_triton_paged import table_of

_BLOCKS, _DIM, _KV_HEADS, _RATIO = 512, 128, 8, 4


def rows() -> list[dict[str, object]]:
    """A row a pair of formats; bytes are those of blocks and scales."""
    card = torch.device("cuda", 0)
    copied = copied_per_s(card)
    return [_row(pair, card, copied) for pair in ("fp", "int8", "int6/int4", "int4")]


def _row(name: str, card: torch.device, copied: float) -> dict[str, object]:
    case = Case(
        (name,) * _BLOCKS, 64, 1, _DIM, _DIM, kv_heads=_KV_HEADS, ratio=_RATIO, dtype=torch.float16
    )
    built = build(case, device=str(card))
    table = table_of(built)
    splits = num_splits(_KV_HEADS, _BLOCKS, num_processors(card) or 1)
    room = Room.make(built.query, attend.rotated_dtype(case.dtype), _DIM, (1, splits, 2))
    out = built.query.new_empty(1, 1, case.heads, _DIM)

    def step() -> None:
        attend.attend_decode(built.query, table, built.scoring, room, out)

    step()  # compiled before it is captured
    ms = float(triton.testing.do_bench_cudagraph(step))
    pair = FormatPair.parse(name)
    each = part_bytes(_DIM, pair.key, 2) + part_bytes(_DIM, pair.value, 2)
    num_bytes = _BLOCKS * _KV_HEADS * each
    return {
        "name": "decode kernel",
        "context": _BLOCKS * BLOCK_TOKENS,
        "pair": str(pair),
        "kvchat_ms": round(ms, 4),
        "read_bytes_per_s": round(num_bytes / ms * 1000),
        "copy_percent": round(100 * num_bytes / ms * 1000 / copied, 1),
    }
