"""Vectors of the CPU kernel's loops: values of LLVM's, made while numba compiles.

All addresses are in bytes, and nothing need be aligned. Codes lie as kvcache/quantize.py packs
them. Knows no loop.
"""

from collections.abc import Iterator
from typing import Any

from llvmlite import binding, ir
from numba import config


def _lanes(features: str | None) -> int:
    """Floats of a register of the processor that numba compiles for: of AVX-512, or of AVX2, or of
    two of NEON.
    """
    features = binding.get_host_cpu_features().flatten() if features is None else features
    return 16 if "+avx512f" in features.split(",") else 8


LANES = _lanes(config.CPU_FEATURES)
PLANES = {"int8": (8,), "int6": (4, 2), "int5": (4, 1), "int4": (4,), "int2": (2,)}
FLOATS = {"float32": 32, "bfloat16": 16, "float16": 16}

FLOAT, HALF = ir.FloatType(), ir.HalfType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FAST = ("reassoc", "nsz", "arcp", "contract", "afn")  # no `nnan`: a NaN must stay one


# --- vectors ----------------------------------------------------------------------------------


def vector(kind: Any, width: int = LANES) -> Any:
    return ir.VectorType(kind, width)


def load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def after(builder: Any, address: Any, num_bytes: int) -> Any:
    return builder.add(address, ir.Constant(I64, num_bytes))


def spread(builder: Any, value: Any, width: int = LANES) -> Any:
    """The scalar in every lane."""
    one = builder.insert_element(
        ir.Constant(vector(value.type, width), ir.Undefined), value, ir.Constant(I32, 0)
    )
    return builder.shuffle_vector(one, one, ir.Constant(vector(I32, width), [0] * width))


def floats(value: float, width: int = LANES) -> Any:
    return ir.Constant(vector(FLOAT, width), [value] * width)


def times_plus(builder: Any, left: Any, right: Any, onto: Any) -> Any:
    product = builder.fmul(left, right, flags=FAST)
    return builder.fadd(product, onto, flags=FAST)


def larger(builder: Any, left: Any, right: Any) -> Any:
    """The larger one; the right one where the left is a NaN."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def folded(builder: Any, values: Any, fold: Any) -> Any:
    """All lanes folded into one scalar, by halves."""
    lanes = width = values.type.count
    while width > 1:
        width //= 2
        order = [*range(width, 2 * width), *[0] * (lanes - width)]
        upper = builder.shuffle_vector(values, values, ir.Constant(vector(I32, lanes), order))
        values = fold(builder, values, upper)
    return builder.extract_element(values, ir.Constant(I32, 0))


def added(builder: Any, left: Any, right: Any) -> Any:
    return builder.fadd(left, right, flags=FAST)


# --- stored values as floats ------------------------------------------------------------------


def stored(builder: Any, address: Any, kind: str, width: int = LANES) -> Any:
    """Values as computed, from `address` on, as floats."""
    if kind == "float32":
        return load(builder, address, vector(FLOAT, width))
    if kind == "float16":
        halves = load(builder, address, vector(HALF, width))
        return builder.fpext(halves, vector(FLOAT, width))
    upper = builder.zext(load(builder, address, vector(I16, width)), vector(I32, width))
    shift = ir.Constant(vector(I32, width), [16] * width)
    return builder.bitcast(builder.shl(upper, shift), vector(FLOAT, width))


def as_floats(
    builder: Any, codes: Any, row: Any, kind: str, shape: tuple[int, int], first: int, width: int
) -> Any:
    """Columns [first, first + width) of a row, as floats: the stored values, or codes without their
    offset. `shape`: rows and columns.
    """
    num_rows, num_cols = shape
    if kind in FLOATS:
        size = FLOATS[kind] // 8
        at = builder.add(codes, builder.mul(row, ir.Constant(I64, num_cols * size)))
        return stored(builder, after(builder, at, first * size), kind, width)
    whole, base = None, 0
    wide = vector(I32, width)
    for bits in PLANES[kind]:
        row_bytes = num_cols * bits // 8
        part, column = divmod(first, row_bytes)
        at = builder.add(codes, builder.mul(row, ir.Constant(I64, row_bytes)))
        loaded = load(builder, after(builder, at, base + column), vector(I8, width))
        if bits == 8:
            return builder.sitofp(builder.sext(loaded, wide), vector(FLOAT, width))
        shift = ir.Constant(wide, [part * bits] * width)
        mask = ir.Constant(wide, [2**bits - 1] * width)
        code = builder.and_(builder.lshr(builder.zext(loaded, wide), shift), mask)
        if whole is not None:
            code = builder.or_(builder.shl(whole, ir.Constant(wide, [bits] * width)), code)
        whole, base = code, base + num_rows * row_bytes
    return builder.sitofp(whole, vector(FLOAT, width))


def tiles(kind: str, num_cols: int, most: int) -> Iterator[tuple[int, list[int]]]:
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
