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

from collections.abc import Iterator
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from kvchat.memory.footprint import BLOCK_TOKENS


def _lanes(features: str | None) -> int:
    """Floats of a register of the processor that numba compiles for: of AVX-512, or of AVX2, or of
    two of NEON.
    """
    features = binding.get_host_cpu_features().flatten() if features is None else features
    return 16 if "+avx512f" in features.split(",") else 8


LANES = _lanes(config.CPU_FEATURES)
MOST_SUMS = 24 if LANES == 16 else 12  # of 32 or 16 registers; the rest is for codes and weights
LINE_BYTES = 64  # of the caches
PLANES = {"int8": (8,), "int6": (4, 2), "int5": (4, 1), "int4": (4,), "int2": (2,)}
FLOATS = {"float32": 32, "bfloat16": 16, "float16": 16}

_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FAST = ("reassoc", "nsz", "arcp", "contract", "afn")  # no `nnan`: a NaN must stay one
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


# --- vectors ----------------------------------------------------------------------------------


def _vector(kind: Any, width: int = LANES) -> Any:
    return ir.VectorType(kind, width)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def _after(builder: Any, address: Any, num_bytes: int) -> Any:
    return builder.add(address, ir.Constant(_I64, num_bytes))


def _spread(builder: Any, value: Any, width: int = LANES) -> Any:
    """The scalar in every lane."""
    one = builder.insert_element(
        ir.Constant(_vector(value.type, width), ir.Undefined), value, ir.Constant(_I32, 0)
    )
    return builder.shuffle_vector(one, one, ir.Constant(_vector(_I32, width), [0] * width))


def _floats(value: float, width: int = LANES) -> Any:
    return ir.Constant(_vector(_FLOAT, width), [value] * width)


def _times_plus(builder: Any, left: Any, right: Any, onto: Any) -> Any:
    product = builder.fmul(left, right, flags=_FAST)
    return builder.fadd(product, onto, flags=_FAST)


def _max(builder: Any, left: Any, right: Any) -> Any:
    """The larger one; the right one where the left is a NaN."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _folded(builder: Any, vector: Any, fold: Any) -> Any:
    """All lanes folded into one scalar, by halves."""
    lanes = width = vector.type.count
    while width > 1:
        width //= 2
        order = [*range(width, 2 * width), *[0] * (lanes - width)]
        upper = builder.shuffle_vector(vector, vector, ir.Constant(_vector(_I32, lanes), order))
        vector = fold(builder, vector, upper)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _sum(builder: Any, left: Any, right: Any) -> Any:
    return builder.fadd(left, right, flags=_FAST)


# --- stored values as floats ------------------------------------------------------------------


def _stored(builder: Any, address: Any, kind: str, width: int = LANES) -> Any:
    """Values as computed, from `address` on, as floats."""
    if kind == "float32":
        return _load(builder, address, _vector(_FLOAT, width))
    if kind == "float16":
        halves = _load(builder, address, _vector(_HALF, width))
        return builder.fpext(halves, _vector(_FLOAT, width))
    upper = builder.zext(_load(builder, address, _vector(_I16, width)), _vector(_I32, width))
    shift = ir.Constant(_vector(_I32, width), [16] * width)
    return builder.bitcast(builder.shl(upper, shift), _vector(_FLOAT, width))


def _codes(
    builder: Any, codes: Any, row: Any, kind: str, shape: tuple[int, int], first: int, width: int
) -> Any:
    """Columns [first, first + width) of a row, as floats: the stored values, or codes without their
    offset. `shape`: rows and columns.
    """
    num_rows, num_cols = shape
    if kind in FLOATS:
        size = FLOATS[kind] // 8
        at = builder.add(codes, builder.mul(row, ir.Constant(_I64, num_cols * size)))
        return _stored(builder, _after(builder, at, first * size), kind, width)
    whole, base = None, 0
    wide = _vector(_I32, width)
    for bits in PLANES[kind]:
        row_bytes = num_cols * bits // 8
        part, column = divmod(first, row_bytes)
        at = builder.add(codes, builder.mul(row, ir.Constant(_I64, row_bytes)))
        loaded = _load(builder, _after(builder, at, base + column), _vector(_I8, width))
        if bits == 8:
            return builder.sitofp(builder.sext(loaded, wide), _vector(_FLOAT, width))
        shift = ir.Constant(wide, [part * bits] * width)
        mask = ir.Constant(wide, [2**bits - 1] * width)
        code = builder.and_(builder.lshr(builder.zext(loaded, wide), shift), mask)
        if whole is not None:
            code = builder.or_(builder.shl(whole, ir.Constant(wide, [bits] * width)), code)
        whole, base = code, base + num_rows * row_bytes
    return builder.sitofp(whole, _vector(_FLOAT, width))


def _tiles(kind: str, num_cols: int, most: int) -> Iterator[tuple[int, list[int]]]:
    """Columns that are summed at once: the vectors' width and first columns.

    Vectors whose codes share bytes stand in one tile; a vector stays within one part of a byte.
    """
    part = num_cols if kind in FLOATS else num_cols * min(PLANES[kind]) // 8
    width = max(w for w in (1, 2, 4, 8, LANES) if part % w == 0)
    nums = [n for n in range(1, num_cols // width + 1) if num_cols % (n * width) == 0]
    sharing = [n for n in nums if part % (num_cols // n) == 0]
    num = max((n for n in sharing if n <= most), default=1)
    stride = num_cols // num
    for first in range(0, stride, width):
        yield width, [first + i * stride for i in range(num)]


def _shares(num: int) -> list[range]:
    """Query heads in groups that fit the registers together."""
    groups = -(-num // 6)
    return [range(num * i // groups, num * (i + 1) // groups) for i in range(groups)]


def _fetch(builder: Any, address: Any, num_bytes: int) -> None:
    """Asks for the bytes to be brought near; nothing waits for them."""
    kind = ir.FunctionType(ir.VoidType(), (_I8.as_pointer(), _I32, _I32, _I32))
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    told = [ir.Constant(_I32, one) for one in (0, 3, 1)]  # to read, kept near, bytes
    for first in range(0, num_bytes, LINE_BYTES):
        place = builder.inttoptr(_after(builder, address, first), _I8.as_pointer())
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
    row_bytes = shape[1] * (FLOATS[name] if name in FLOATS else sum(PLANES[name])) // 8

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_codes, at_weights, at_sums, count = values[:4]
        coming = builder.add(at_codes, values[-1])
        for heads in _shares(num_heads):
            for width, firsts in _tiles(name, shape[1], max(1, MOST_SUMS // len(heads))):
                places = [
                    _after(builder, at_sums, 4 * (head * shape[1] + first))
                    for head in heads
                    for first in firsts
                ]
                kept = [cgutils.alloca_once(builder, _vector(_FLOAT, width)) for _ in places]
                for slot, place in zip(kept, places, strict=True):
                    before = _load(builder, place, _vector(_FLOAT, width))
                    builder.store(_floats(0.0, width) if begins.literal_value else before, slot)
                with cgutils.for_range(builder, count) as loop:
                    if not heads.start and not firsts[0]:
                        row = builder.mul(loop.index, ir.Constant(_I64, row_bytes))
                        _fetch(builder, builder.add(coming, row), row_bytes)
                    weight_at = builder.add(
                        at_weights, builder.mul(loop.index, ir.Constant(_I64, 4))
                    )
                    spread = [
                        _spread(
                            builder,
                            _load(builder, _after(builder, weight_at, 4 * head * shape[0]), _FLOAT),
                            width,
                        )
                        for head in heads
                    ]
                    for i, first in enumerate(firsts):
                        found = _codes(builder, at_codes, loop.index, name, shape, first, width)
                        for j, weight in enumerate(spread):
                            slot = kept[j * len(firsts) + i]
                            builder.store(
                                _times_plus(builder, weight, found, builder.load(slot)), slot
                            )
                for slot, place in zip(kept, places, strict=True):
                    _store(builder, builder.load(slot), place)

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
    size = FLOATS[name] // 8
    width = LANES if num_dims % LANES == 0 else 8

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_keys, at_queries, at_scores, count = values[:4]
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(at_keys, builder.mul(loop.index, ir.Constant(_I64, num_dims * size)))
            _fetch(builder, builder.add(row, values[-1]), num_dims * size)
            place = builder.add(at_scores, builder.mul(loop.index, ir.Constant(_I64, 4)))
            for heads in _shares(num_heads):
                totals = [_floats(0.0, width) for _ in heads]
                for first in range(0, num_dims, width):
                    found = _stored(builder, _after(builder, row, first * size), name, width)
                    for i, head in enumerate(heads):
                        at = _after(builder, at_queries, 4 * (head * num_dims + first))
                        query = _load(builder, at, _vector(_FLOAT, width))
                        totals[i] = _times_plus(builder, query, found, totals[i])
                for total, head in zip(totals, heads, strict=True):
                    _store(
                        builder,
                        _folded(builder, total, _sum),
                        _after(builder, place, 4 * head * BLOCK_TOKENS),
                    )

    return types.void(keys, queries, scores, num_rows, kind, dim, ratio, ahead), emit


@intrinsic
def scaled(_context: Any, scores: Any, scales: Any, offset: Any, unit: Any) -> Any:
    """64 floats each."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_scores, at_scales = values[:2]
        offset_each, unit_each = (_spread(builder, one) for one in values[2:])
        for first in range(0, BLOCK_TOKENS, LANES):
            place = _after(builder, at_scores, 4 * first)
            scale = _load(builder, _after(builder, at_scales, 4 * first), _vector(_FLOAT))
            score = _sum(builder, _load(builder, place, _vector(_FLOAT)), offset_each)
            scale = builder.fmul(scale, unit_each, flags=_FAST)
            _store(builder, builder.fmul(score, scale, flags=_FAST), place)

    return types.void(scores, scales, offset, unit), emit


@intrinsic
def weighted(_context: Any, scores: Any, scales: Any, unit: Any) -> Any:
    """64 floats each."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at_scores, at_scales = values[:2]
        unit_each, total = _spread(builder, values[2]), _floats(0.0)
        for first in range(0, BLOCK_TOKENS, LANES):
            place = _after(builder, at_scores, 4 * first)
            scale = _load(builder, _after(builder, at_scales, 4 * first), _vector(_FLOAT))
            scale = builder.fmul(scale, unit_each, flags=_FAST)
            score = builder.fmul(_load(builder, place, _vector(_FLOAT)), scale, flags=_FAST)
            total = _sum(builder, total, score)
            _store(builder, score, place)
        return _folded(builder, total, _sum)

    return types.float32(scores, scales, unit), emit


@intrinsic(prefer_literal=True)
def raised(_context: Any, sums: Any, num_floats: Any, value: Any) -> Any:
    """A multiple of 8 floats."""
    num = num_floats.literal_value
    width = LANES if num % LANES == 0 else 8

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        each = _spread(builder, values[2], width)
        for first in range(0, num, width):
            place = _after(builder, values[0], 4 * first)
            found = _load(builder, place, _vector(_FLOAT, width))
            _store(builder, _sum(builder, found, each), place)

    return types.void(sums, num_floats, value), emit


@intrinsic
def highest(_context: Any, scores: Any) -> Any:
    """The largest of 64 floats."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        most = _load(builder, values[0], _vector(_FLOAT))
        for first in range(LANES, BLOCK_TOKENS, LANES):
            found = _load(builder, _after(builder, values[0], 4 * first), _vector(_FLOAT))
            most = _max(builder, most, found)
        return _folded(builder, most, _max)

    return types.float32(scores), emit


@intrinsic
def exponents(_context: Any, scores: Any, top: Any) -> Any:
    """Turns 64 floats into exp(x - top), in place, and returns their sum. x <= top."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        at, highest_score = values
        shift = _spread(builder, highest_score)
        total = _floats(0.0)
        for first in range(0, BLOCK_TOKENS, LANES):
            place = _after(builder, at, 4 * first)
            scores = builder.fsub(_load(builder, place, _vector(_FLOAT)), shift)
            power = builder.fmul(scores, _floats(_LOG2_E))
            # Below 2**-125 the exponent's bits would run over; unordered: a NaN stays a NaN.
            low = builder.fcmp_ordered("<", power, _floats(-125.0))
            power = builder.select(low, _floats(-125.0), power)
            half_less = builder.fsub(power, _floats(0.5))
            whole = builder.fptosi(half_less, _vector(_I32))  # towards 0 from below: the nearest
            rest = builder.fsub(power, builder.sitofp(whole, _vector(_FLOAT)))
            value = _floats(_EXP2[0])
            for factor in _EXP2[1:]:
                value = _times_plus(builder, value, rest, _floats(factor))
            exponent = builder.shl(whole, ir.Constant(_vector(_I32), [23] * LANES))
            bits = builder.add(builder.bitcast(value, _vector(_I32)), exponent)
            value = builder.bitcast(bits, _vector(_FLOAT))
            total = _sum(builder, total, value)
            _store(builder, value, place)
        return _folded(builder, total, _sum)

    return types.float32(scores, top), emit


@intrinsic
def widen(_context: Any, halves: Any, floats: Any) -> Any:
    """64 halves at one address become floats at the other."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        for first in range(0, BLOCK_TOKENS, LANES):
            found = _stored(builder, _after(builder, values[0], 2 * first), "float16")
            _store(builder, found, _after(builder, values[1], 4 * first))

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
        floats = builder.inttoptr(at, _FLOAT.as_pointer())
        with cgutils.for_range(builder, count) as loop:
            builder.store(one, builder.gep(floats, [loop.index])).align = 4

    return types.void(address, types.int64, types.float32), emit


@intrinsic
def call(_context: Any, function: Any, arguments: Any, item: Any) -> Any:
    """Calls a C function of two int64 that returns one, by its address."""

    def emit(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_I64, (_I64, _I64))
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(types.int64, types.int64, types.int64), emit
