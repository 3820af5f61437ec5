"""The CPU's decode kernel against the plain reference, over what the stored bytes mean in fp32.

Kernels take seconds to compile and are then kept on disk, so the default cases hold every format of
keys and of values, every head size and every number of query heads at least once, and all that
needs no kernel of its own (lengths, windows, softcap, sinks, threads) on a few of them. The slow
ones are pairwise: every two choices occur together.
"""

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvchat.attention import cpu
from kvchat.attention.backend import Lying
from kvchat.attention.reference import attend_dense
from kvchat.kvcache.block_lists import BlockList
from kvchat.kvcache.blocks import FP, Geometry, HotWindow, shape_of
from kvchat.kvcache.quantize import dequantize_keys, dequantize_values
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from tests.attention.blocks import Built, Case, Placed, build

llvm = pytest.importorskip("llvmlite.binding", reason="numba is not installed")
numba = pytest.importorskip("numba", reason="numba is not installed")
cpu_kernel = pytest.importorskip("kvchat.attention.cpu_kernel")

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FORMATS = ("fp", "int8", "int6", "int5", "int4", "int2")
DIMS = (8, 16, 64, 80, 96, 112, 128, 256)
RATIOS = (1, 2, 3, 4, 7, 8, 12)
# Half a unit in the last place of the output; the sums are made in fp32.
ROUNDING = {F32: 0.0, F16: 2.0**-11, BF16: 2.0**-8}
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Laid:
    """What the kernel asks of a `LayerKV`, over a built case: the second of its three layers."""

    built: Built
    found: Lying
    window: int | None = None
    layer: int = 1

    @property
    def num_kv_heads(self) -> int:
        return self.built.case.kv_heads

    @property
    def value_dim(self) -> int:
        return self.built.case.value_dim

    def lying(self) -> Lying:
        return self.found

    def scratch(self, num_floats: int) -> Tensor:
        """Full of what must not be read before it is written."""
        return torch.full((num_floats,), torch.nan)


def lay(built: Built) -> tuple[Laid, HotWindow]:
    """Blocks by pair of formats, oldest first, as a sequence lists them; a window of its own."""
    case = built.case
    geometry = Geometry(
        (0, 1, 2), case.kv_heads, case.key_dim, case.value_dim, case.window, case.dtype
    )
    num_sealed = BLOCK_TOKENS * len(case.pairs)
    num_hot = case.hot_tokens + 1
    seen = geometry.first_visible(num_sealed + case.hot_tokens)
    by_pair: dict[FormatPair, list[Placed]] = {}
    for block in built.blocks[seen // BLOCK_TOKENS :]:
        by_pair.setdefault(block.pair, []).append(block)
    lists = []
    for pair, blocks in (by_pair or {FP: []}).items():
        one = BlockList(pair, CPU)
        one.set_from(0, [block.address for block in blocks], [block.position for block in blocks])
        lists.append((one, shape_of(geometry, pair)))
    lists[0][0].skip = seen % BLOCK_TOKENS if seen < num_sealed else 0
    before, hot_skip = 3, max(0, seen - num_sealed)
    hot = HotWindow(geometry, before + num_hot + 2, CPU)
    hot.tensor.fill_(torch.nan)
    for to, source in ((hot.keys, built.keys), (hot.values, built.values)):
        to[1, :, before : before + num_hot] = source[:, num_sealed:]
    size, place = case.dtype.itemsize, before + hot_skip
    keys = hot.tensor.data_ptr()
    values = keys + hot.num_tokens * case.key_dim * size
    head_bytes = geometry.head_bytes(hot.num_tokens)
    lying = Lying(
        lists=lists,
        formats=frozenset(f.name for pair in by_pair for f in (pair.key, pair.value)),
        dtype=case.dtype,
        hot_keys=keys + place * case.key_dim * size,
        hot_values=values + place * case.value_dim * size,
        hot_layer_bytes=case.kv_heads * head_bytes,
        hot_head_bytes=head_bytes,
        num_hot=num_hot - hot_skip,
        num_tokens=num_sealed + num_hot - seen,
        value_dim=case.value_dim,
    )
    return Laid(built, lying, case.window), hot


def meant(built: Built) -> tuple[Tensor, Tensor]:
    """Keys and values in fp32, the sealed ones as the blocks' bytes say."""
    case = built.case
    keys, values = built.keys.float(), built.values.float()
    for block in built.blocks:
        shape = shape_of(
            Geometry((1,), case.kv_heads, case.key_dim, case.value_dim, None, case.dtype),
            block.pair,
        )
        start = block.address - built.memory.data_ptr() + block.layer_offset
        heads = built.memory[start : start + shape.layer_bytes].view(case.kv_heads, -1)
        tokens = slice(block.position, block.position + BLOCK_TOKENS)
        key, value = block.pair.key, block.pair.value
        k_dtype, v_dtype = (case.dtype if fmt.bits is None else F32 for fmt in (key, value))
        keys[:, tokens] = dequantize_keys(
            heads[:, : shape.key_bytes].clone(), key, case.key_dim, k_dtype
        )
        values[:, tokens] = dequantize_values(
            heads[:, shape.key_bytes :].clone(), value, case.value_dim, v_dtype
        )
    return keys, values


def errors(built: Built, threads: int = 1) -> Tensor:
    """The kernel's differences to the reference, as parts of what is allowed: at most 1 each.

    1e-5 of the values' size, where scores are large what fp32 leaves of them, and the output's own
    rounding.
    """
    case, scoring = built.case, built.scoring
    keys, values = meant(built)
    expected = attend_dense(built.query.float(), keys, values, scoring, case.window).double()
    laid, hot = lay(built)
    assert cpu.supports(built.query, laid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "PARALLEL_TOKENS", 0)
        patch.setattr(torch, "get_num_threads", lambda: threads)
        found = cpu.attend(built.query, laid, scoring)
    assert hot is not None  # alive until here
    assert found.shape == (1, 1, case.heads, case.value_dim)
    assert found.dtype == case.dtype
    finite = built.query.float().nan_to_num(0.0, 0.0, 0.0)
    most_score = float(finite.norm(dim=-1).max() * keys.norm(dim=-1).max()) * scoring.scale
    allowed = (1e-5 + 2e-7 * most_score) * float(values.abs().max())
    return (found.double() - expected).abs() / (allowed + expected.abs() * ROUNDING[case.dtype])


def agrees(case: Case, threads: int = 1, seed: int = 0) -> None:
    found = errors(build(case, seed), threads)
    assert found.isfinite().all()
    assert float(found.max()) <= 1


BLOCKS = 3


def case_of(
    key: str, value: str, dtype: torch.dtype, key_dim: int, value_dim: int, ratio: int, **more: Any
) -> Case:
    return Case(
        pairs=(f"{key}/{value}",) * BLOCKS,
        hot_tokens=37,
        key_dim=key_dim,
        value_dim=value_dim,
        ratio=ratio,
        dtype=dtype,
        **more,
    )


# Each value of each column at least once, and the formats that are offered in common sizes. Long
# values and many query heads take long to compile: they stand alone here.
KERNELS = (
    case_of("fp", "fp", F32, 64, 64, 3),
    case_of("fp", "fp", BF16, 128, 128, 4),
    case_of("fp", "fp", F16, 80, 80, 1),
    case_of("int8", "int8", F32, 64, 64, 3),
    case_of("int6", "int4", F32, 64, 64, 3),
    case_of("int4", "int4", BF16, 112, 96, 1),
    case_of("int5", "int6", F32, 80, 16, 1),
    case_of("int2", "int5", F32, 16, 8, 12),
    case_of("int6", "int2", F16, 8, 16, 7),
    case_of("fp", "int8", BF16, 96, 112, 1),
    case_of("int4", "fp", F32, 16, 256, 1),
    case_of("int8", "int4", F32, 256, 8, 2),
    case_of("int8", "int6", F32, 16, 16, 8),
)


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_a_kernel_is_the_reference(case: Case) -> None:
    agrees(case)
    agrees(replace(case, pairs=case.pairs[:1], hot_tokens=0, window=40, softcap=20.0, sinks=True))


def pairwise_cases() -> list[Case]:
    """A few dozen cases in which any two choices of two columns occur together: greedily, the best
    of some random ones each time.
    """
    columns: tuple[tuple[Any, ...], ...] = (FORMATS, FORMATS, (F32, BF16, F16), DIMS, DIMS, RATIOS)
    chance = random.Random(1)

    def pairs(row: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2))

    missing = {
        ((i, a), (j, b))
        for (i, left), (j, right) in itertools.combinations(enumerate(columns), 2)
        for a in left
        for b in right
    }
    rows: list[tuple[Any, ...]] = []
    while missing:
        tried = [tuple(chance.choice(column) for column in columns) for _ in range(200)]
        best = max(tried, key=lambda row: len(pairs(row) & missing))
        if pairs(best) & missing:
            rows.append(best)
            missing -= pairs(best)
    return [case_of(*row) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise_cases(), ids=str)
def test_every_two_choices_together_are_the_reference(case: Case) -> None:
    agrees(case)
    agrees(replace(case, window=100, softcap=5.0, sinks=True), threads=3)


# Two KV heads: on three threads each has three shares of the blocks, on two it would have one.
SMALL = Case(pairs=(), key_dim=64, value_dim=64, ratio=3)


@pytest.mark.parametrize("pair", ["fp", "int8", "int6/int4"])
@pytest.mark.parametrize("num_blocks", [0, 1, 2, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_lengths_around_a_block(pair: str, num_blocks: int, threads: int) -> None:
    """From one new token to many; of the shares of several threads some have no block."""
    for hot_tokens in (0, 63, 64, 200):
        case = replace(SMALL, pairs=(pair,) * num_blocks, hot_tokens=hot_tokens)
        agrees(case, threads)
        agrees(replace(case, kv_heads=1, sinks=True), threads)


@pytest.mark.parametrize("order", list(itertools.permutations(("fp", "int8", "int6/int4"))))
def test_lists_of_several_formats_make_one_softmax(order: tuple[str, ...]) -> None:
    for threads in (1, 3):
        agrees(replace(SMALL, pairs=order, hot_tokens=20), threads)
        agrees(replace(SMALL, pairs=order * 3, hot_tokens=0, softcap=30.0, sinks=True), threads)


@pytest.mark.parametrize("window", [1, 2, 64, 65, 66, 127, 128, 129, 200])
def test_a_window_hides_the_oldest_tokens(window: int) -> None:
    """Every part of the first visible block, over equal and over differing formats."""
    for pairs in (("int8",) * 3, ("int6/int4", "int8", "fp"), ("fp", "fp", "int8")):
        case = replace(SMALL, pairs=pairs, hot_tokens=63, window=window)
        agrees(case)
        agrees(replace(case, softcap=10.0, sinks=True), threads=3)


def test_every_skip_of_a_block() -> None:
    built = build(replace(SMALL, pairs=("int8",) * 2))
    for skip in range(64):
        case = replace(built.case, window=129 - skip)
        assert float(errors(replace(built, case=case)).max()) <= 1


@pytest.mark.parametrize("pair", ["fp", "int8", "int6/int4"])
@pytest.mark.parametrize("size", [100.0, -100.0, 1e4, -1e4])
@pytest.mark.parametrize("sinks", [False, True])
def test_scores_of_any_size(pair: str, size: float, sinks: bool) -> None:
    """All scores near ±`size` or spread over it: nothing overflows, and the rest of it counts."""
    case = replace(SMALL, pairs=(pair,) * 2, hot_tokens=10, sinks=sinks)
    for spread in (False, True):
        built = build(case)
        # Channel 3 of the keys stands out at 4: the query sees nothing else.
        built.query.zero_()
        built.query[..., 3] = size * 8 / 4
        if spread:
            built.query[..., 5] = abs(size) / 100
        found = errors(built)
        assert found.isfinite().all()
        assert float(found.max()) <= 1


@pytest.mark.parametrize("pair", ["fp", "int8", "int6/int4"])
def test_equal_scores_make_a_mean(pair: str) -> None:
    built = build(replace(SMALL, pairs=(pair,) * 3, hot_tokens=5))
    built.query.zero_()
    laid, hot = lay(built)
    found = cpu.attend(built.query, laid, built.scoring)
    assert hot is not None
    mean = meant(built)[1].mean(1).repeat_interleave(3, dim=0)
    assert (found[0, 0] - mean).abs().max() < 1e-5


@pytest.mark.parametrize("pair", ["fp", "int8", "int6/int4"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_head_that_is_not_finite_spoils_no_other(pair: str, bad: float, threads: int) -> None:
    built = build(replace(SMALL, pairs=(pair,) * 2, hot_tokens=70))
    built.query[0, 1, 0, 7] = bad
    found = errors(built, threads)[0, 0]
    assert not found[1].isfinite().any()
    others = found[[0, 2, 3, 4, 5]]
    assert others.isfinite().all()
    assert float(others.max()) <= 1


def test_a_dead_token_counts_as_zeros() -> None:
    """A token whose vectors were all zero, and one that was not finite, have scale 0."""
    built = build(replace(SMALL, pairs=("int8", "int6/int4"), hot_tokens=3))
    for block in built.blocks:
        shape = shape_of(Geometry((1,), 2, 64, 64, None, F32), block.pair)
        start = block.address - built.memory.data_ptr() + block.layer_offset
        heads = built.memory[start : start + shape.layer_bytes].view(2, -1)
        heads[:, shape.key_bytes - 128 : shape.key_bytes - 120] = 0
        heads[:, -8:] = 0
    assert float(errors(built).max()) <= 1


def test_what_the_kernel_cannot_do_it_refuses() -> None:
    """More than one token, eighths of a vector, floating codes; `choose` then takes another."""
    one = build(replace(SMALL, pairs=("int8",)))
    laid, _ = lay(one)
    assert cpu.supports(one.query, laid)
    assert not cpu.supports(one.query.repeat(1, 1, 2, 1), laid)
    double = replace(laid, found=replace(laid.found, dtype=torch.float64))
    assert not cpu.supports(one.query, double)
    fp8 = build(replace(SMALL, pairs=("int8", "int8/fp8")))
    assert not cpu.supports(fp8.query, lay(fp8)[0])
    odd = build(Case(pairs=("fp",), key_dim=12, value_dim=16))
    assert not cpu.supports(odd.query, lay(odd)[0])
    odd = build(Case(pairs=("fp",), key_dim=16, value_dim=12))
    assert not cpu.supports(odd.query, lay(odd)[0])


def test_the_cache_says_what_type_it_holds() -> None:
    """Queries of fp32 over keys and values of bf16, as a model makes that norms them in fp32."""
    built = build(case_of("fp", "fp", BF16, 128, 128, 4))
    wide = replace(built, query=built.query.float())
    laid, hot = lay(wide)
    found = cpu.attend(wide.query, laid, wide.scoring)
    assert hot is not None
    assert found.dtype == F32
    expected = attend_dense(wide.query, *meant(wide), wide.scoring, None)
    assert (found - expected).abs().max() < 1e-5


# --- what is kept on disk -------------------------------------------------------------------------

ONE, OTHER = (Case((pair,) * 2, 3, key_dim=8, value_dim=8) for pair in ("int8", "fp"))


def compiled_anew(case: Case) -> Any:
    """The case's kernel as another process would come by it, after it gave the right values."""
    for kept in (cpu_kernel.passes, cpu_kernel.runner, cpu_kernel._joiner):
        kept.cache_clear()
    agrees(case)
    key, value = ("float32" if f == "fp" else f for f in (case.pairs[0],) * 2)
    return cpu_kernel.passes(key, value, "float32", 8, 8, 1, (8,))


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    yield tmp_path
    compiled = (cpu_kernel.passes, cpu_kernel.runner, cpu_kernel._joiner)
    for kept in compiled:
        kept.cache_clear()


def test_kernels_are_compiled_once_a_machine(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the inner loops change, which numba does not see by itself."""
    assert compiled_anew(ONE).cache_hits == 0
    assert compiled_anew(ONE).cache_hits == 1
    for made in (cpu_kernel.runner(False), cpu_kernel._joiner()):
        assert sum(made.stats.cache_hits.values()) == 1
    monkeypatch.setattr(cpu_kernel, "_STAMP", 1)
    assert compiled_anew(ONE).cache_hits == 0
    for made in (cpu_kernel.runner(False), cpu_kernel._joiner()):
        assert not made.stats.cache_hits


def test_a_kernel_under_anothers_name_is_not_run_and_made_anew(on_disk: Path) -> None:
    """As two processes may leave it that write at the same time."""
    compiled_anew(ONE)
    compiled_anew(OTHER)
    first, second = sorted(on_disk.rglob("*item_pass*.nbc"))
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    compiled_anew(ONE)
    compiled_anew(OTHER)
    assert compiled_anew(ONE).cache_hits == 1
    assert compiled_anew(OTHER).cache_hits == 1


@pytest.mark.parametrize("damaged", ["nbc", "nbi"])
def test_files_that_were_cut_off_are_made_anew_once(on_disk: Path, damaged: str) -> None:
    compiled_anew(ONE)
    for file in on_disk.rglob(f"*.{damaged}"):
        file.write_bytes(file.read_bytes()[: 200 if damaged == "nbc" else 20])
    compiled_anew(ONE)
    assert compiled_anew(ONE).cache_hits == 1
    for made in (cpu_kernel.runner(False), cpu_kernel._joiner()):
        assert sum(made.stats.cache_hits.values()) == 1


def test_kernels_are_prepared_before_the_first_step(on_disk: Path) -> None:
    """For every pair of formats in use, and none for what the kernel does not read."""
    for kept in (cpu_kernel.passes, cpu_kernel.runner, cpu_kernel._joiner):
        kept.cache_clear()
    small = Geometry((0, 1), 2, 8, 8, None, F32)
    cpu.prepare((small,), [FormatPair.parse("int8"), FormatPair.parse("fp8")], 4)
    prepared = cpu_kernel.passes.cache_info().currsize
    agrees(replace(ONE, ratio=2))
    agrees(replace(OTHER, ratio=2))
    assert cpu_kernel.passes.cache_info().currsize == prepared == 2


@pytest.mark.parametrize("fault", ["no folder", pytest.param("full disk", marks=pytest.mark.slow)])
def test_without_a_place_on_disk_it_is_compiled_for_now(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A read-only system without a home, and a disk that fills up."""
    caching = numba.core.caching

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if fault == "no folder":
        monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    else:
        monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", full)
    assert compiled_anew(ONE).cache_hits == 0


@pytest.mark.slow
def test_a_processor_with_shorter_registers_gets_the_same(tmp_path: Path) -> None:
    """As numba compiles for one without AVX-512, and, on ARM, as it does anyway."""
    features = llvm.get_host_cpu_features().flatten().split(",")
    without = ",".join(one for one in features if "avx512" not in one and "evex" not in one)
    environment = {"NUMBA_CPU_FEATURES": without, "NUMBA_CACHE_DIR": str(tmp_path)}
    chosen = "lengths_around or window_hides or size or not_finite or several_formats or int5"
    plain = ("-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "-k", chosen, __file__],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    code = "from kvchat.attention.cpu_simd import LANES; print(LANES)"
    told = subprocess.check_output([sys.executable, "-c", code], env=os.environ | environment)
    assert int(told) == 8
