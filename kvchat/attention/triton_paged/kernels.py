# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""Triton kernels that attend to blocks of any format where they lie, and merge what they found.

A program takes a tile of query rows that share one KV head and walks a run of tiles of 64 tokens
with a running softmax (FlashAttention); decode splits the blocks over programs, and the partial
results are merged by log-sum-exp (FlashDecoding). A tile's codes become fp16 in registers and go
into tensor-core dots; scales are multiplied to score columns (keys) and to weights (values). The
bytes are those of kvcache/quantize.py.

Codes become fp16 without a conversion instruction: with a code in the low bits of 0x6400, the bits
are the number 1024 + code, and subtracting is exact. Codes of 6 bits and less become the odd
number 2 * code + 1 - 2^b, so that the half step needs no fraction.

Knows no torch: pointers, strides and numbers. Triton reads this file's source, hence no annotations
but constexpr.
"""

import triton
import triton.language as tl

from kvchat.memory.formats import FORMATS

TILE: tl.constexpr = tl.constexpr(64)
_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
_PLANES = {name: fmt.planes for name, fmt in FORMATS.items()}


@triton.constexpr_function
def plane_bits(fmt: str, plane: int) -> int:
    """Bits of a format's first or second plane; 0 where there is none."""
    return (*_PLANES[fmt], 0)[plane]


@triton.constexpr_function
def unit(fmt: str) -> float:
    """What the numbers of `_numbers` are to be multiplied by, beside their scale."""
    # fp16 and fp8 have exponents biased by 15 and by 7: the same bits mean 1/256.
    known = {"fp": 1.0, "int8": 1 / 127, "fp8": 256 / 448}
    return known[fmt] if fmt in known else 0.5 ** sum(_PLANES[fmt])


@triton.jit
def _plane(at, row, column, seen, columns: tl.constexpr, bits: tl.constexpr):
    """The bits of one plane for rows x columns, uint8; a row's columns are packed bits wide.

    A byte is read once for each value in it: the first read brings it, the others find it in L1.
    """
    stride: tl.constexpr = columns * bits // 8
    byte = tl.load(at + row * stride + column % stride, mask=seen, other=0)
    place = column // stride
    if bits == 8:
        # Zero, but the compiler does not know it. It would move a pure chain of conversions behind
        # shared memory, where every warp reads single bytes and converts the whole tile.
        return byte ^ place.to(tl.uint8)
    # Columns beyond the head size are masked; their shift is kept within a byte all the same.
    return (byte >> (place * bits & 7).to(tl.uint8)) & ((1 << bits) - 1)


@triton.jit
def _read(at, row, column, seen, rows: tl.constexpr, columns: tl.constexpr, fmt: tl.constexpr):
    """A tile of one part from memory: its planes (the second is a dummy where there is none)."""
    high: tl.constexpr = plane_bits(fmt, 0)
    low: tl.constexpr = plane_bits(fmt, 1)
    first = _plane(at, row, column, seen, columns, high)
    if low > 0:
        return first, _plane(at + rows * columns * high // 8, row, column, seen, columns, low)
    return first, first


@triton.jit
def _numbers(first, second, fmt: tl.constexpr):
    """A tile's codes as exact fp16 numbers; value = number * unit(fmt) * scale."""
    high: tl.constexpr = plane_bits(fmt, 0)
    low: tl.constexpr = plane_bits(fmt, 1)
    if fmt == "fp8":
        wide = first.to(tl.uint16)
        wide = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        return wide.to(tl.float16, bitcast=True)
    if fmt == "int8":
        wide = (first ^ 0x80).to(tl.uint16) | 0x6400
        return wide.to(tl.float16, bitcast=True) - 1152.0
    code = (first << low) | second if low > 0 else first
    wide = (code.to(tl.uint16) << 1) | 0x6401
    return wide.to(tl.float16, bitcast=True) - (1024.0 + (1 << (high + low)))


@triton.jit
def _scales(part, part_bytes: tl.constexpr):
    """fp32 [64]: the last 128 bytes of a part."""
    at = (part + (part_bytes - 128)).to(tl.pointer_type(tl.float16))
    return tl.load(at + tl.arange(0, TILE)).to(tl.float32)


@triton.jit
def _value_part(at, token, d, seen, dim: tl.constexpr, fmt: tl.constexpr,
                part_bytes: tl.constexpr, fp: tl.constexpr):  # fmt: skip
    """64 values from memory: their planes and scales, or for `fp` the values (and dummies)."""
    if fmt == "fp":
        here = at.to(tl.pointer_type(fp)) + token[:, None] * dim + d[None, :]
        high = tl.load(here, mask=seen[None, :], other=0.0)
        low, scales = high, high
    else:
        high, low = _read(at, token[:, None], d[None, :], seen[None, :], TILE, dim, fmt)
        scales = _scales(at, part_bytes)
    return high, low, scales


@triton.jit
def _begin(query, out, sums, num_rows, rows: tl.constexpr, key_dim: tl.constexpr,
           key_wide: tl.constexpr, dim: tl.constexpr, wide: tl.constexpr,
           value_unit: tl.constexpr, goes_on: tl.constexpr):  # fmt: skip
    """A program's rows: their numbers, which of them there are, their queries, where their result
    goes, and the running softmax before the first tile: of nothing, or of what `out` and `sums`
    hold.
    """
    head = tl.program_id(1)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    seen = row < num_rows
    key_d, d = tl.arange(0, key_wide), tl.arange(0, wide)
    q_at = query + (head * num_rows + row)[:, None] * key_dim + key_d[None, :]
    q = tl.load(q_at, mask=seen[:, None] & (key_d < key_dim)[None, :], other=0.0)
    place = (tl.program_id(2) * tl.num_programs(1) + head) * num_rows + row
    if goes_on:
        most = tl.load(sums + place, mask=seen, other=float("-inf")) * _LOG2E
        total = tl.where(most == float("-inf"), 0.0, 1.0)
        at = out + place[:, None] * dim + d[None, :]
        acc = tl.load(at, mask=seen[:, None] & (d[None, :] < dim), other=0.0) / value_unit
    else:
        most = tl.full([rows], float("-inf"), tl.float32)
        total = tl.full([rows], 0.0, tl.float32)
        acc = tl.full([rows, wide], 0.0, tl.float32)
    return row, seen, q, place, most, total, acc


@triton.jit
def _step(scores, cap, most, total, acc, softcap: tl.constexpr, hidden):
    """Takes one tile of scores [rows, 64] into the running softmax, in units of log 2.

    Returns the weights of the tile, and most, total and acc brought to the new maximum.
    """
    if softcap:  # cap * tanh(scores), with tanh(x) = 1 - 2 / (e^2x + 1)
        scores = cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2E)) + 1.0))
    if hidden is not None:
        scores = tl.where(hidden, float("-inf"), scores)
    new = tl.maximum(most, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(most - base)
    return weights, new, total * fade + tl.sum(weights, 1), acc * fade[:, None]


@triton.jit
def _end(out, sums, row, seen, most, total, acc, dim: tl.constexpr, wide: tl.constexpr,
         value_unit: tl.constexpr):  # fmt: skip
    """Writes the normalised result and its log-sum-exp: 0 and -inf where nothing was seen."""
    d = tl.arange(0, wide)
    share = tl.where(total > 0.0, value_unit / total, 0.0)
    at = out + row[:, None] * dim + d[None, :]
    tl.store(at, acc * share[:, None], mask=seen[:, None] & (d[None, :] < dim))
    tl.store(sums + row, (most + tl.log2(total)) * _LN2, mask=seen)


@triton.jit(
    do_not_specialize=["layer_offset", "num_rows", "num_tokens", "window"],
    do_not_specialize_on_alignment=["sums", "num_blocks", "query_position"],
)
def attend_blocks(
    query,  # [kv_heads, num_rows, key_dim], rotated as the keys; rows: (head of the group, token)
    out,  # fp32 [splits, kv_heads, num_rows, value_dim], rotated as the values
    sums,  # fp32 [splits, kv_heads, num_rows], natural log-sum-exp
    addresses,  # int64 [capacity] of blocks, multiples of 16
    positions,  # int32 [capacity] of their first tokens
    num_blocks,  # int32 [1]
    query_position,  # int32 [1] of the first query token
    layer_offset,  # bytes from a block's address to this layer
    num_rows,
    num_tokens,
    scale,  # of scores: divided by the softcap, or in units of log 2
    cap,  # the softcap in units of log 2
    window,
    key_format: tl.constexpr,
    value_format: tl.constexpr,
    key_part: tl.constexpr,  # bytes of 64 keys of one head
    value_part: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_wide: tl.constexpr,
    value_wide: tl.constexpr,
    fp: tl.constexpr,
    rows: tl.constexpr,
    softcap: tl.constexpr,
    windowed: tl.constexpr,
    exact: tl.constexpr,  # dots in fp32, and `query` with them: for the interpreter
    goes_on: tl.constexpr,
):
    """A run of sealed blocks a program. Grid: (row tiles, kv_heads, splits)."""
    head, split = tl.program_id(1), tl.program_id(2)
    key_d, value_d, token = tl.arange(0, key_wide), tl.arange(0, value_wide), tl.arange(0, TILE)
    key_seen, value_seen = key_d < key_dim, value_d < value_dim
    value_unit: tl.constexpr = unit(value_format)
    row, seen, q, place, most, total, acc = _begin(
        query, out, sums, num_rows, rows, key_dim, key_wide, value_dim, value_wide, value_unit,
        goes_on,
    )  # fmt: skip
    first_seen = tl.load(query_position) + row % num_tokens - window + 1
    here = layer_offset + head * (key_part + value_part)
    # A decode step waits for memory: it asks for all of a block before it computes anything. A
    # larger tile waits for its dots, and has no registers to spare.
    early: tl.constexpr = rows <= 16
    count = tl.load(num_blocks)
    share = (count + tl.num_programs(2) - 1) // tl.num_programs(2)
    for block in range(split * share, tl.minimum(split * share + share, count)):
        keys = tl.multiple_of((tl.load(addresses + block) + here).to(tl.pointer_type(tl.uint8)), 16)
        values = keys + key_part
        if key_format == "fp":
            k_at = keys.to(tl.pointer_type(fp)) + key_d[:, None] + token[None, :] * key_dim
            k = tl.load(k_at, mask=key_seen[:, None], other=0.0)
        else:
            k_high, k_low = _read(
                keys, key_d[:, None], token[None, :], key_seen[:, None], key_dim, TILE, key_format
            )
            k_scales = _scales(keys, key_part) * (scale * unit(key_format))
        if early:
            v, v_low, v_scales = _value_part(
                values, token, value_d, value_seen, value_dim, value_format, value_part, fp
            )
        if key_format == "fp":
            scores = tl.dot(q, k.to(q.dtype)) * scale
        else:
            scores = tl.dot(q, _numbers(k_high, k_low, key_format).to(q.dtype)) * k_scales[None, :]
        hidden = None
        if windowed:
            hidden = (tl.load(positions + block) + token)[None, :] < first_seen[:, None]
        weights, most, total, acc = _step(scores, cap, most, total, acc, softcap, hidden)
        if not early:
            v, v_low, v_scales = _value_part(
                values, token, value_d, value_seen, value_dim, value_format, value_part, fp
            )
        if value_format != "fp":
            v = _numbers(v, v_low, value_format)
            weights *= v_scales[None, :]
        if exact:
            v = v.to(tl.float32)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    _end(out, sums, place, seen, most, total, acc, value_dim, value_wide, value_unit)


@triton.jit(
    do_not_specialize=["num_rows", "num_tokens", "window"],
    do_not_specialize_on_alignment=["sums", "span", "query_position"],
)
def attend_hot(
    query,  # [kv_heads, num_rows, key_dim]; rows: (head of the group, token)
    out,  # fp32 [splits, kv_heads, num_rows, value_dim]
    sums,  # fp32 [splits, kv_heads, num_rows], natural log-sum-exp
    keys,  # [kv_heads, places, key_dim]
    values,  # [kv_heads, places, value_dim]
    span,  # int32 [3]: first place seen, the one after the last, position of the first
    query_position,  # int32 [1] of the first query token
    key_head_stride,
    key_stride,
    value_head_stride,
    value_stride,
    num_rows,
    num_tokens,
    scale,
    cap,
    window,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_wide: tl.constexpr,
    value_wide: tl.constexpr,
    rows: tl.constexpr,
    softcap: tl.constexpr,
    windowed: tl.constexpr,
    causal: tl.constexpr,  # the chunk's own tokens are in it, of which a row sees some
    exact: tl.constexpr,  # dots in fp32, and `query` with them: for the interpreter
    goes_on: tl.constexpr,
):
    """Tiles of the hot window, as computed. Grid: (row tiles, kv_heads, splits)."""
    head, split = tl.program_id(1), tl.program_id(2)
    key_d, value_d, token = tl.arange(0, key_wide), tl.arange(0, value_wide), tl.arange(0, TILE)
    key_seen, value_seen = key_d < key_dim, value_d < value_dim
    row, seen, q, place, most, total, acc = _begin(
        query, out, sums, num_rows, rows, key_dim, key_wide, value_dim, value_wide, 1.0, goes_on
    )
    start, stop, position = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    # Where a row's own token stands in the window.
    own = tl.load(query_position) + row % num_tokens - position + start
    keys += head * key_head_stride
    values += head * value_head_stride
    for tile in range(start + split * TILE, stop, tl.num_programs(2) * TILE):
        at = tile + token
        held = at < stop
        k_at = keys + key_d[:, None] + at[None, :] * key_stride
        k = tl.load(k_at, mask=key_seen[:, None] & held[None, :], other=0.0)
        v_at = values + at[:, None] * value_stride + value_d[None, :]
        v = tl.load(v_at, mask=held[:, None] & value_seen[None, :], other=0.0)
        hidden = at[None, :] >= stop
        if causal:
            hidden = hidden | (at[None, :] > own[:, None])
        if windowed:
            hidden = hidden | (at[None, :] <= (own - window)[:, None])
        scores = tl.dot(q, k.to(q.dtype)) * scale
        weights, most, total, acc = _step(scores, cap, most, total, acc, softcap, hidden)
        if exact:
            v = v.to(tl.float32)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    _end(out, sums, place, seen, most, total, acc, value_dim, value_wide, 1.0)


@triton.jit
def _turned(out, vector, plain, matrix, dim: tl.constexpr, wide: tl.constexpr):
    """out [dim] = vector @ matrix + plain, in fp32."""
    step: tl.constexpr = 16
    d = tl.arange(0, wide)
    for start in range(0, dim, step):
        column = start + tl.arange(0, step)
        at = matrix + d[:, None] * dim + column[None, :]
        cells = tl.load(at, mask=(d[:, None] < dim) & (column[None, :] < dim), other=0.0)
        own = tl.where(d[:, None] == column[None, :], plain[:, None], 0.0)
        found = tl.sum(vector[:, None] * cells + own, 0)
        tl.store(out + column, found.to(out.dtype.element_ty), mask=column < dim)


@triton.jit
def rotate(vectors, out, matrix, dim: tl.constexpr, wide: tl.constexpr):
    """out [n, dim] = vectors [n, dim] @ matrix [dim, dim] fp32. Grid: (n,)."""
    row = tl.program_id(0)
    d = tl.arange(0, wide)
    vector = tl.load(vectors + row * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    _turned(out + row * dim, vector, tl.full([wide], 0.0, tl.float32), matrix, dim, wide)


@triton.jit
def _shared_out(parts, sums, first, stop, num_heads, most, total, dim: tl.constexpr,
                wide: tl.constexpr):  # fmt: skip
    """Parts first .. stop, each by its share of the softmax: fp32 [wide]."""
    step: tl.constexpr = 16
    d = tl.arange(0, wide)
    head = tl.program_id(0)
    found = tl.full([wide], 0.0, tl.float32)
    for start in range(first, stop, step):
        part = start + tl.arange(0, step)
        place = part * num_heads + head
        share = tl.exp(tl.load(sums + place, mask=part < stop, other=float("-inf")) - most) / total
        at = parts + place[:, None] * dim + d[None, :]
        seen = (part[:, None] < stop) & (d[None, :] < dim)
        found += tl.sum(tl.load(at, mask=seen, other=0.0) * share[:, None], 0)
    return found


@triton.jit(do_not_specialize=["num_parts", "num_rotated", "num_heads"])
def merge(
    parts,  # fp32 [num_parts, num_heads, dim], the rotated ones first
    sums,  # fp32 [num_parts, num_heads], natural log-sum-exp
    sinks,  # [num_heads], or anything where there are none
    matrix,  # fp32 [dim, dim], the rotation
    out,  # [num_heads, dim]
    num_parts,
    num_rotated,
    num_heads,
    parts_wide: tl.constexpr,
    dim: tl.constexpr,
    wide: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Merges partial results by log-sum-exp and turns the rotated ones back. Grid: (heads,)."""
    head = tl.program_id(0)
    part = tl.arange(0, parts_wide)
    at = sums + part * num_heads + head
    each = tl.load(at, mask=part < num_parts, other=float("-inf"))
    most = tl.max(each, 0)
    if has_sinks:
        sink = tl.load(sinks + head).to(tl.float32)
        most = tl.maximum(most, sink)
    total = tl.sum(tl.exp(each - most), 0)
    if has_sinks:
        total += tl.exp(sink - most)
    turned = _shared_out(parts, sums, 0, num_rotated, num_heads, most, total, dim, wide)
    plain = _shared_out(parts, sums, num_rotated, num_parts, num_heads, most, total, dim, wide)
    _turned(out + head * dim, turned, plain, matrix, dim, wide)
