"""The Triton kernels in Triton's interpreter, against the plain reference over the same values.

fp32 cases show that every bit is read right and every formula is the reference's; fp16 and bf16
ones that the dots' rounding is all that is lost. The interpreter has to be chosen before triton is
first imported, so the kernels run in a process of their own.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context

import pytest
import torch
from torch import Tensor

from kvchat.attention.reference import attend_dense
from kvchat.attention.triton_paged import table
from kvchat.attention.triton_paged.table import (
    HEAD_DIMS,
    HotWindow,
    LayerTable,
    SealedBlocks,
    num_splits,
    refusal,
)
from kvchat.memory.formats import FORMATS
from tests.attention.blocks import Built, Case, build
from tests.conftest import REPO

Run = Callable[[Case], float]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

# Greatest difference to the reference, whose outputs have a standard deviation of 0.1 to 1.
_MOST = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Run]:
    """Runs a case in the interpreter and gives its greatest difference to the reference."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_interpret) as pool:
        yield lambda case: pool.submit(difference, case).result()


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def difference(case: Case, device: str = "cpu") -> float:
    built = build(case, device=device)
    expected = attend_dense(built.query, built.keys, built.values, built.scoring, case.window)
    found = _decode(built) if case.chunk == 1 else _prefill(built)
    assert found.isfinite().all()
    return float((found.float() - expected.float()).abs().max())


def _decode(built: Built) -> Tensor:
    from kvchat.attention.triton_paged import attend
    from kvchat.attention.triton_paged.standing import Room

    case = built.case
    kv = table_of(built)
    out = built.query.new_full((1, 1, case.heads, case.value_dim), torch.nan)
    rotated = attend.rotated_dtype(case.dtype)
    room = Room.make(built.query, rotated, case.value_dim, (len(kv.sealed), 2, 2))
    attend.attend_decode(built.query, kv, built.scoring, room, out)
    return out


def _prefill(built: Built) -> Tensor:
    from kvchat.attention.triton_paged import attend

    out = attend.attend_prefill(built.query, table_of(built), built.scoring)
    return out.to(built.query.dtype).transpose(1, 2)


def table_of(built: Built) -> LayerTable:
    def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=built.query.device)

    sealed = []
    for pair in dict.fromkeys(block.pair for block in built.blocks):
        own = [block for block in built.blocks if block.pair == pair]
        addresses = ints(*(b.address for b in own), built.poisoned, dtype=torch.int64)
        positions = ints(*(b.position for b in own), own[0].position)
        offset = own[0].layer_offset
        sealed.append(SealedBlocks(pair, addresses, positions, ints(len(own)), offset))
    hot_position = 64 * len(built.blocks)
    span = ints(built.first, built.stop, hot_position)
    return LayerTable(
        tuple(sealed),
        HotWindow(built.hot_keys, built.hot_values, span),
        ints(hot_position + built.case.hot_tokens),
        built.case.window,
    )


MIX = ("int4", "int8", "int6/int4", "fp", "int4", "fp/int4")
CASES = [
    # every format, head size and ratio
    Case(("fp",) * 3, 9, ratio=3),
    Case(("int8",) * 3, 9, key_dim=80, value_dim=80, ratio=4),
    Case(("int6",) * 3, 9, key_dim=96, value_dim=96),
    Case(("fp8",) * 3, 9, key_dim=112, value_dim=112, ratio=3),
    Case(("int5",) * 3, 9, key_dim=128, value_dim=128),
    Case(("int4",) * 3, 9, key_dim=256, value_dim=256, ratio=3),
    Case(("int2",) * 3, 9, kv_heads=1, ratio=8),
    Case(("int5/int2", "int2/int6"), 9, kv_heads=1, key_dim=80, value_dim=112),
    # lengths around the edges of blocks and tiles, and programs that get no block
    Case((), 0),
    Case((), 64),
    Case(("int4",), 0, ratio=3),
    Case(("int4",) * 5, 63),
    Case(("int4",), 200),
    # more heads a group than a tile has rows
    Case(("int6/int4", "int8"), 5, kv_heads=1, ratio=20),
    # softcap, sinks, windows that end inside, at the edge of, and behind a block
    Case(MIX, 30, softcap=2.0),
    Case(MIX, 30, sinks=True),
    *(Case(MIX[:3], 30, kv_heads=1, window=window) for window in (7, 31, 32, 95, 96, 300)),
    # what dots in half precision lose
    Case(MIX, 30, ratio=3, key_dim=128, value_dim=128, dtype=torch.float16),
    Case(MIX, 30, ratio=3, dtype=torch.bfloat16),
    Case(MIX, 30, window=200, softcap=2.0, sinks=True, dtype=torch.float16),
    # a chunk over its prefix
    Case(MIX, 30, chunk=50, kv_heads=1, ratio=4),
    Case((), 0, chunk=20),
    Case(("int4",) * 2, 0, chunk=20),
    Case(("fp8", "int8"), 70, chunk=33, key_dim=80, value_dim=80, dtype=torch.float16),
    Case(("int5/int2",) * 2, 5, chunk=5, ratio=3, key_dim=256, value_dim=256),
    Case(MIX, 30, chunk=40, softcap=2.0, sinks=True, dtype=torch.bfloat16),
    *(Case(MIX[:3], 30, chunk=40, kv_heads=1, window=window) for window in (20, 60, 100)),
]
# Blocks, hot tokens and chunk; softcap, sinks and window, or none of them.
VARIANTS = ((1, 0, 1, False), (3, 64, 1, True), (3, 0, 21, False), (2, 30, 21, True))


def whole_matrix() -> Iterator[Case]:
    """Every pair of formats with every head size in every variant; ratios take turns."""
    pairs = (*FORMATS, "int6/int4", "int8/int4", "fp/int8")
    places = product(range(len(pairs)), range(len(HEAD_DIMS)), range(len(VARIANTS)))
    for pair, dim, variant in places:
        blocks, hot, chunk, full = VARIANTS[variant]
        ratio = (1, 3, 4, 8)[(pair + dim + variant) % 4]
        yield Case(
            (pairs[pair],) * blocks,
            hot,
            chunk,
            HEAD_DIMS[dim],
            HEAD_DIMS[dim],
            kv_heads=2 if ratio < 4 else 1,
            ratio=ratio,
            window=100 if full else None,
            softcap=2.0 if full else None,
            sinks=full,
        )


@needs_triton
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_interpreted_kernels_give_the_references_values(interpreted: Run, case: Case) -> None:
    assert interpreted(case) < _MOST[case.dtype]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_the_whole_matrix_agrees(interpreted: Run, dim: int) -> None:
    found = {case: interpreted(case) for case in whole_matrix() if case.key_dim == dim}
    assert len(found) == 40
    assert {str(case): most for case, most in found.items() if most >= _MOST[case.dtype]} == {}


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        *(replace(case, dtype=torch.float16) for case in CASES),
        *(replace(case, dtype=torch.bfloat16) for case in CASES[::4]),
    ],
    ids=str,
)
def test_the_kernels_give_the_references_values_on_a_card(case: Case) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA card")
    assert difference(case, "cuda") < _MOST[case.dtype]


@needs_triton
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "dtype", "capability", "why"),
    [
        (128, 80, torch.bfloat16, (8, 0), None),
        (256, 256, torch.float16, (12, 0), None),
        (128, 128, torch.float16, (7, 5), "old_card"),
        (128, 128, torch.float32, (8, 6), "dtype"),
        (192, 128, torch.float16, (9, 0), "head_size"),
        (64, 48, torch.float16, (9, 0), "head_size"),
        (64, 64, torch.float16, None, "no_nvidia_card"),
    ],
)
def test_what_is_not_served_is_refused(
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    why: str | None,
) -> None:
    assert refusal(key_dim, value_dim, dtype, capability) == why


def test_without_triton_everything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "find_spec", lambda _name: None)
    assert refusal(64, 64, torch.float16, (8, 6)) == "no_triton"


@pytest.mark.parametrize(
    ("kv_heads", "capacity", "splits"), [(8, 1000, 32), (8, 5, 5), (1, 10_000, 64), (128, 0, 1)]
)
def test_splits_fill_the_card_and_no_more(kv_heads: int, capacity: int, splits: int) -> None:
    assert num_splits(kv_heads, capacity, num_processors=128) == splits


_WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from tests.attention.test_parity import library_logits, made, random_ids
local, model = made("llama")
ids = random_ids(70, 1)
logits = local.step(local.open(ids, 70), ids)
assert (logits - library_logits(model, ids)[-1]).abs().max() < 1e-4
"""


def test_a_model_runs_where_triton_is_missing() -> None:
    """As on Windows and macOS."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TRITON], cwd=REPO, check=False)
    assert done.returncode == 0
