"""The inner loops of the CPU kernel as LLVM vectors, made by numba's `intrinsic`.

As plain loops LLVM kept the sums in memory and converted a code once for each query head, which
took two to three times as long. Everything here takes byte addresses; formats and sizes are
literals, so a kernel is made for each. Codes lie as kvcache/quantize.py packs them: K as rows of
one dimension over 64 tokens, V as rows of one token over its dimensions; so scores and weighted
sums are one loop:

    accumulate   sums[r, c]   += sum over rows of weights[r, row] * code[row, c]
    scaled       scores[j]     = (scores[j] + offset) * scales[j] * unit for 64 scores
    weighted     scores[j]     = scores[j] * scales[j] * unit for 64 scores; returns their sum
    raised       sums[c]      += value
    dots         scores[r, j]  = sum over d of queries[r, d] * keys[j, d]      (keys as computed)
    highest      the largest of 64 scores
    exponents    scores[j]     = exp(scores[j] - top) for 64 scores; returns their sum
    widen        64 halves as floats
    fill         one float everywhere
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvchat.attention import cpu_simd as simd
from kvchat.memory.footprint import BLOCK_TOKENS

# Of 32 or 16 registers; the rest is for codes and weights.
MOST_SUMS = 24 if simd.LANES == 16 else 12
LINE_BYTES = 64  # of the caches
_LOG2_E = 1.4426950408889634
_EXP2 = (  # 2**f for -0.5 <= f <= 0.5, highest power first; relative error 2e-7 (Cephes)
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)


def _shares(num: int) -> list[range]:
    """Query heads in groups that fit the registers together."""
    groups = -(-num // 6)
    return [range(num * i // groups, num * (i + 1) // groups) for i in range(groups)]


def _fetch(builder: Any, address: Any, num_bytes: int) -> None:
    """Asks for the bytes to be brought near; nothing waits for them."""
    kind = ir.FunctionType(ir.VoidType(), (simd.I8.as_pointer(), simd.I32, simd.I32, simd.I32))
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    told = [ir.Constant(simd.I32, one) for one in (0, 3, 1)]  # to read, kept near, bytes
    for first in range(0, num_bytes, LINE_BYTES):
        place = builder.inttoptr(simd.after(builder, address, first), simd.I8.as_pointer())
        builder.call(prefetch, [place, *told])


# --- the loops --------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def accumulate(
    _context: Any,
    codes: Any,
    weights: Any,
    sums: Any,
    num_rows: Any,
    kind: Any,
    rows: Any,
    cols: Any,
    ratio: Any,
    begins: Any,
    ahead: Any,
) -> Any:
    """codes at [rows, cols]; weights float [ratio, rows], sums float [ratio, cols]; the first
    `num_rows` rows count. `begins`: what the sums were before does not count. What lies `ahead`
    bytes further is brought near meanwhile: the next block, which no processor foresees.
    """
    shape, num_heads, name = (
        (rows.literal_value, cols.literal_value),
        ratio.literal_value,
        kind.literal_value,
    )
    row_bytes = (
        shape[1] * (simd.FLOATS[name] if name in simd.FLOATS else sum(simd.PLANES[name])) // 8
    )

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_codes, at_weights, at_sums, count = values[:4]
        coming = builder.add(at_codes, values[-1])
        for heads in _shares(num_heads):
            for width, firsts in simd.tiles(name, shape[1], max(1, MOST_SUMS // len(heads))):
                places = [
                    simd.after(builder, at_sums, 4 * (head * shape[1] + first))
                    for head in heads
                    for first in firsts
                ]
                kept = [
                    cgutils.alloca_once(builder, simd.vector(simd.FLOAT, width)) for _ in places
                ]
                for slot, place in zip(kept, places, strict=True):
                    before = simd.load(builder, place, simd.vector(simd.FLOAT, width))
                    builder.store(simd.floats(0.0, width) if begins.literal_value else before, slot)
                with cgutils.for_range(builder, count) as loop:
                    if not heads.start and not firsts[0]:
                        row = builder.mul(loop.index, ir.Constant(simd.I64, row_bytes))
                        _fetch(builder, builder.add(coming, row), row_bytes)
                    weight_at = builder.add(
                        at_weights, builder.mul(loop.index, ir.Constant(simd.I64, 4))
                    )
                    spread = [
                        simd.spread(
                            builder,
                            simd.load(
                                builder,
                                simd.after(builder, weight_at, 4 * head * shape[0]),
                                simd.FLOAT,
                            ),
                            width,
                        )
                        for head in heads
                    ]
                    for i, first in enumerate(firsts):
                        found = simd.as_floats(
                            builder, at_codes, loop.index, name, shape, first, width
                        )
                        for j, weight in enumerate(spread):
                            slot = kept[j * len(firsts) + i]
                            builder.store(
                                simd.times_plus(builder, weight, found, builder.load(slot)), slot
                            )
                for slot, place in zip(kept, places, strict=True):
                    simd.store(builder, builder.load(slot), place)

    told = (codes, weights, sums, num_rows, kind, rows, cols, ratio, begins, ahead)
    return types.void(*told), emit


@intrinsic(prefer_literal=True)
def dots(
    _context: Any,
    keys: Any,
    queries: Any,
    scores: Any,
    num_rows: Any,
    kind: Any,
    dim: Any,
    ratio: Any,
    ahead: Any,
) -> Any:
    """keys at [num_rows, dim] as computed; queries float [ratio, dim]; scores float [ratio, 64].
    `ahead` as above.
    """
    num_dims, num_heads, name = dim.literal_value, ratio.literal_value, kind.literal_value
    size = simd.FLOATS[name] // 8
    width = simd.LANES if num_dims % simd.LANES == 0 else 8

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_keys, at_queries, at_scores, count = values[:4]
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(
                at_keys, builder.mul(loop.index, ir.Constant(simd.I64, num_dims * size))
            )
            _fetch(builder, builder.add(row, values[-1]), num_dims * size)
            place = builder.add(at_scores, builder.mul(loop.index, ir.Constant(simd.I64, 4)))
            for heads in _shares(num_heads):
                totals = [simd.floats(0.0, width) for _ in heads]
                for first in range(0, num_dims, width):
                    found = simd.stored(
                        builder, simd.after(builder, row, first * size), name, width
                    )
                    for i, head in enumerate(heads):
                        at = simd.after(builder, at_queries, 4 * (head * num_dims + first))
                        query = simd.load(builder, at, simd.vector(simd.FLOAT, width))
                        totals[i] = simd.times_plus(builder, query, found, totals[i])
                for total, head in zip(totals, heads, strict=True):
                    simd.store(
                        builder,
                        simd.folded(builder, total, simd.added),
                        simd.after(builder, place, 4 * head * BLOCK_TOKENS),
                    )

    return types.void(keys, queries, scores, num_rows, kind, dim, ratio, ahead), emit


@intrinsic
def scaled(_context: Any, scores: Any, scales: Any, offset: Any, unit: Any) -> Any:
    """64 floats each."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_scores, at_scales = values[:2]
        offset_each, unit_each = (simd.spread(builder, one) for one in values[2:])
        for first in range(0, BLOCK_TOKENS, simd.LANES):
            place = simd.after(builder, at_scores, 4 * first)
            scale = simd.load(
                builder, simd.after(builder, at_scales, 4 * first), simd.vector(simd.FLOAT)
            )
            score = simd.added(
                builder, simd.load(builder, place, simd.vector(simd.FLOAT)), offset_each
            )
            scale = builder.fmul(scale, unit_each, flags=simd.FAST)
            simd.store(builder, builder.fmul(score, scale, flags=simd.FAST), place)

    return types.void(scores, scales, offset, unit), emit


@intrinsic
def weighted(_context: Any, scores: Any, scales: Any, unit: Any) -> Any:
    """64 floats each."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_scores, at_scales = values[:2]
        unit_each, total = simd.spread(builder, values[2]), simd.floats(0.0)
        for first in range(0, BLOCK_TOKENS, simd.LANES):
            place = simd.after(builder, at_scores, 4 * first)
            scale = simd.load(
                builder, simd.after(builder, at_scales, 4 * first), simd.vector(simd.FLOAT)
            )
            scale = builder.fmul(scale, unit_each, flags=simd.FAST)
            score = builder.fmul(
                simd.load(builder, place, simd.vector(simd.FLOAT)), scale, flags=simd.FAST
            )
            total = simd.added(builder, total, score)
            simd.store(builder, score, place)
        return simd.folded(builder, total, simd.added)

    return types.float32(scores, scales, unit), emit


@intrinsic(prefer_literal=True)
def raised(_context: Any, sums: Any, num_floats: Any, value: Any) -> Any:
    """A multiple of 8 floats."""
    num = num_floats.literal_value
    width = simd.LANES if num % simd.LANES == 0 else 8

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        each = simd.spread(builder, values[2], width)
        for first in range(0, num, width):
            place = simd.after(builder, values[0], 4 * first)
            found = simd.load(builder, place, simd.vector(simd.FLOAT, width))
            simd.store(builder, simd.added(builder, found, each), place)

    return types.void(sums, num_floats, value), emit


@intrinsic
def highest(_context: Any, scores: Any) -> Any:
    """The largest of 64 floats."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        most = simd.load(builder, values[0], simd.vector(simd.FLOAT))
        for first in range(simd.LANES, BLOCK_TOKENS, simd.LANES):
            found = simd.load(
                builder, simd.after(builder, values[0], 4 * first), simd.vector(simd.FLOAT)
            )
            most = simd.larger(builder, most, found)
        return simd.folded(builder, most, simd.larger)

    return types.float32(scores), emit


@intrinsic
def exponents(_context: Any, scores: Any, top: Any) -> Any:
    """Turns 64 floats into exp(x - top), in place, and returns their sum. x <= top."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at, highest_score = values
        shift = simd.spread(builder, highest_score)
        total = simd.floats(0.0)
        for first in range(0, BLOCK_TOKENS, simd.LANES):
            place = simd.after(builder, at, 4 * first)
            scores = builder.fsub(simd.load(builder, place, simd.vector(simd.FLOAT)), shift)
            power = builder.fmul(scores, simd.floats(_LOG2_E))
            # Below 2**-125 the exponent's bits would run over; unordered: a NaN stays a NaN.
            low = builder.fcmp_ordered("<", power, simd.floats(-125.0))
            power = builder.select(low, simd.floats(-125.0), power)
            half_less = builder.fsub(power, simd.floats(0.5))
            whole = builder.fptosi(
                half_less, simd.vector(simd.I32)
            )  # towards 0 from below: the nearest
            rest = builder.fsub(power, builder.sitofp(whole, simd.vector(simd.FLOAT)))
            value = simd.floats(_EXP2[0])
            for factor in _EXP2[1:]:
                value = simd.times_plus(builder, value, rest, simd.floats(factor))
            exponent = builder.shl(whole, ir.Constant(simd.vector(simd.I32), [23] * simd.LANES))
            bits = builder.add(builder.bitcast(value, simd.vector(simd.I32)), exponent)
            value = builder.bitcast(bits, simd.vector(simd.FLOAT))
            total = simd.added(builder, total, value)
            simd.store(builder, value, place)
        return simd.folded(builder, total, simd.added)

    return types.float32(scores, top), emit


@intrinsic
def widen(_context: Any, halves: Any, floats: Any) -> Any:
    """64 halves at one address become floats at the other."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        for first in range(0, BLOCK_TOKENS, simd.LANES):
            found = simd.stored(builder, simd.after(builder, values[0], 2 * first), "float16")
            simd.store(builder, found, simd.after(builder, values[1], 4 * first))

    return types.void(halves, floats), emit


@intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """An address as what `numba.carray` takes."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def fill(_context: Any, address: Any, num_floats: Any, value: Any) -> Any:
    """Writes the value `num_floats` times."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at, count, one = values
        floats = builder.inttoptr(at, simd.FLOAT.as_pointer())
        with cgutils.for_range(builder, count) as loop:
            builder.store(one, builder.gep(floats, [loop.index])).align = 4

    return types.void(address, types.int64, types.float32), emit


@intrinsic
def call(_context: Any, function: Any, arguments: Any, item: Any) -> Any:
    """Calls a C function of two int64 that returns one, by its address."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(simd.I64, (simd.I64, simd.I64))
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(types.int64, types.int64, types.int64), emit
