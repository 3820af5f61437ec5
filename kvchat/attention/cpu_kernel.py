"""The decode kernel of a CPU, over blocks of any format where they lie: numba, no compiler needed.

A work item is a KV head's share of the blocks. It keeps a running softmax (the highest score, the
sum of weights, the weighted values) over one pass for each pair of formats; the last pass adds the
hot window, and `join` makes the output of all shares (FlashDecoding's split). The queries are
rotated as the keys were, and the output back (kvcache/quantize.py). Nothing is gathered, and
nothing is dequantised beyond a register. The inner loops are in cpu_lanes.py. Knows no torch.

All arguments stand in one array of int64, so that a call costs a pointer. Compiled code is kept on
disk where numba can; what it finds there is not trusted: two processes that write at once may leave
one's kernel under the other's name (numba's index is read, changed and written without a lock).
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zlib import crc32

import numpy as np
from numba import carray, cfunc, config, njit, prange, set_num_threads, types
from numba.core.caching import FunctionCache

from kvchat.attention import cpu_lanes, cpu_simd
from kvchat.attention.cpu_lanes import (
    accumulate,
    call,
    dots,
    exponents,
    fill,
    highest,
    pointer,
    raised,
    scaled,
    weighted,
    widen,
)
from kvchat.attention.cpu_simd import FLOATS, PLANES
from kvchat.memory.footprint import BLOCK_TOKENS

# numba keeps compiled kernels by this file's date and the processor's features; what the loops are
# made of belongs to the key.
_LOOPS = Path(cpu_lanes.__file__).read_bytes() + Path(cpu_simd.__file__).read_bytes()
_STAMP = crc32(_LOOPS)
# A full disk, a file that was cut off, no folder to write to: it is compiled for this process then.
_NO_DISK = (OSError, RuntimeError, EOFError, UnpicklingError)
_LOWEST = np.float32(-1e30)  # of masked scores: minus infinity would make NaN of a difference
_FAST = {"reassoc", "nsz", "arcp", "contract", "afn"}


# Places in the array of arguments. Addresses and distances are in bytes.
QUERY = 0  # float [kv_heads, ratio, key_dim]
OUT = 1  # float [kv_heads, ratio, value_dim]
SCRATCH = 2  # float [items, item_floats]
SINKS = 3  # float [kv_heads, ratio], or 0
NUM_HEADS, NUM_SHARES = 4, 5
SCALES = 6  # two floats: the scores' scale, and their softcap or 0
TABLE, NUM_BLOCKS = 7, 8  # int64 [num_blocks]
LAYER_OFFSET, HEAD_BYTES = 9, 10
SKIP = 11  # leading tokens of the first block that are not seen
HOT_KEYS, HOT_VALUES, HOT_HEAD_BYTES = 12, 13, 14
NUM_HOT = 15  # 0 in all passes but the last
BEGINS = 16
NUM_FIELDS = 17


@cache
def two_floats(first: float, second: float) -> int:
    """Two floats in the bits of one int64."""
    return int(np.array([first, second], np.float32).view(np.int64)[0])


def item_floats(key_dim: int, value_dim: int, ratio: int) -> int:
    """A work item's running softmax, its queries plain and rotated, scores, scales, and what the
    codes' offset adds to each score.
    """
    return ratio * (3 + 2 * value_dim + 2 * key_dim + BLOCK_TOKENS) + BLOCK_TOKENS


def _mark(*about: object) -> int:
    """A number for one piece of compiled code, made of what it was compiled from."""
    return crc32(repr((_STAMP, about)).encode())


def _kept(
    function: Callable[..., int], compiled: Callable[[bool], Any], works: Callable[[Any], bool]
) -> Any:
    """What `compiled(on_disk)` makes of the function, from the disk where that is possible. What is
    damaged there, or another's, is forgotten and made anew, so that the next start finds it whole.
    """
    for _ in range(2):
        try:
            made = compiled(True)
            if works(made):
                return made
        except _NO_DISK:
            pass
        _forget(function)
    return compiled(False)


def _forget(function: Callable[..., int]) -> None:
    """Empties the index of the function's kernels; not where there is no place on disk."""
    with suppress(*_NO_DISK):
        FunctionCache(function).flush()


def _bits(kind: str) -> int:
    return FLOATS[kind] if kind in FLOATS else sum(PLANES[kind])


@cache
def passes(
    key_kind: str,
    value_kind: str,
    hot_kind: str,
    key_dim: int,
    value_dim: int,
    ratio: int,
    key_parts: tuple[int, ...],
) -> Any:
    """One item's pass over the blocks of one pair of formats, a C function (arguments, item).

    key_kind, value_kind: a name of PLANES, or of FLOATS where blocks hold values as computed.
    key_parts: sizes of the rotation's parts, which sum to the dim. Made once, kept on disk.
    """
    key_bits, value_bits = _bits(key_kind), _bits(value_kind)
    keys_coded, values_coded = key_kind in PLANES, value_kind in PLANES
    key_codes_bytes = BLOCK_TOKENS * key_dim * key_bits // 8
    value_codes_bytes = BLOCK_TOKENS * value_dim * value_bits // 8
    values_at = key_codes_bytes + (2 * BLOCK_TOKENS if keys_coded else 0)
    key_offset, key_unit = _decoded(key_bits)
    value_offset, value_unit = _decoded(value_bits)
    hot_key_bytes, hot_value_bytes = (dim * FLOATS[hot_kind] // 8 for dim in (key_dim, value_dim))
    item_bytes = 4 * item_floats(key_dim, value_dim, ratio)
    num_tokens = BLOCK_TOKENS
    mark = _mark(key_kind, value_kind, hot_kind, key_dim, value_dim, ratio, key_parts)

    def item_pass(arguments: int, item: int) -> int:
        if arguments == 0:
            return mark
        given = carray(pointer(arguments), (NUM_FIELDS,), np.int64)
        scale_and_cap = carray(pointer(arguments + 8 * SCALES), (2,), np.float32)
        head, share = item // given[NUM_SHARES], item % given[NUM_SHARES]
        at_top = given[SCRATCH] + item * item_bytes
        at_plain = at_top + 8 * ratio
        at_turned = at_plain + 4 * ratio * value_dim
        at_query = at_turned + 4 * ratio * value_dim
        at_query_turned = at_query + 4 * ratio * key_dim
        at_scores = at_query_turned + 4 * ratio * key_dim
        at_scales = at_scores + 4 * ratio * num_tokens
        offsets = carray(pointer(at_scales + 4 * num_tokens), (ratio,), np.float32)
        own_turned = carray(pointer(at_query_turned), (ratio, key_dim), np.float32)
        if given[BEGINS]:
            fill(at_top, ratio, _LOWEST)
            fill(at_top + 4 * ratio, ratio * (1 + 2 * value_dim), np.float32(0))
        query = carray(
            pointer(given[QUERY] + 4 * head * ratio * key_dim), (ratio, key_dim), np.float32
        )
        own = carray(pointer(at_query), (ratio, key_dim), np.float32)
        for r in range(ratio):
            for d in range(key_dim):
                own[r, d] = query[r, d] * scale_and_cap[0]
                own_turned[r, d] = own[r, d]
            if keys_coded:
                _turn(at_query_turned + 4 * r * key_dim, key_parts)
                offsets[r] = 0
                for d in range(key_dim):
                    offsets[r] += own_turned[r, d] * key_offset
        table = carray(pointer(given[TABLE]), (given[NUM_BLOCKS],), np.int64)
        first = given[NUM_BLOCKS] * share // given[NUM_SHARES]
        stop = given[NUM_BLOCKS] * (share + 1) // given[NUM_SHARES]
        for i in range(first, stop):
            at = table[i] + given[LAYER_OFFSET] + head * given[HEAD_BYTES]
            coming = table[min(i + 1, stop - 1)] - table[i]
            if keys_coded:
                accumulate(
                    at, at_query_turned, at_scores, key_dim, key_kind, key_dim, num_tokens, ratio,
                    1, coming,
                )  # fmt: skip
                widen(at + key_codes_bytes, at_scales)
                for r in range(ratio):
                    scaled(at_scores + 4 * r * num_tokens, at_scales, offsets[r], key_unit)
            else:
                dots(at, at_query, at_scores, num_tokens, key_kind, key_dim, ratio, coming)
            if i == 0:
                for r in range(ratio):
                    fill(at_scores + 4 * r * num_tokens, given[SKIP], _LOWEST)
            _weigh(at_top, ratio, value_dim, at_scores, scale_and_cap[1])
            if values_coded:
                widen(at + values_at + value_codes_bytes, at_scales)
                for r in range(ratio):
                    total = weighted(at_scores + 4 * r * num_tokens, at_scales, value_unit)
                    raised(at_turned + 4 * r * value_dim, value_dim, total * value_offset)
            accumulate(
                at + values_at, at_scores, at_turned if values_coded else at_plain, num_tokens,
                value_kind, num_tokens, value_dim, ratio, 0, coming,
            )  # fmt: skip
        if share == given[NUM_SHARES] - 1:
            for start in range(0, given[NUM_HOT], num_tokens):
                num = min(num_tokens, given[NUM_HOT] - start)
                at = head * given[HOT_HEAD_BYTES]
                dots(
                    given[HOT_KEYS] + at + start * hot_key_bytes, at_query, at_scores, num,
                    hot_kind, key_dim, ratio, 0,
                )  # fmt: skip
                for r in range(ratio):
                    fill(at_scores + 4 * (r * num_tokens + num), num_tokens - num, _LOWEST)
                _weigh(at_top, ratio, value_dim, at_scores, scale_and_cap[1])
                accumulate(
                    given[HOT_VALUES] + at + start * hot_value_bytes, at_scores, at_plain, num,
                    hot_kind, num_tokens, value_dim, ratio, 0, 0,
                )  # fmt: skip
        return mark

    def compiled(on_disk: bool) -> Any:
        signature = types.int64(types.int64, types.int64)
        return cfunc(signature, cache=on_disk, nopython=True, error_model="numpy", fastmath=_FAST)(
            item_pass
        )

    return _kept(item_pass, compiled, lambda made: made.ctypes(0, 0) == mark)


def _decoded(bits: int) -> tuple[np.float32, np.float32]:
    """What is added to a code, and what a code of scale 1 is worth."""
    if bits >= 8:
        return np.float32(0), np.float32(1 / 127)
    return np.float32(0.5 - 2 ** (bits - 1)), np.float32(1 / 2 ** (bits - 1))


@njit(error_model="numpy", fastmath=_FAST)
def _weigh(at_top: int, ratio: int, value_dim: int, at_scores: int, softcap: float) -> None:
    """Scores become weights relative to the highest one; what was summed before is scaled down."""
    top = carray(pointer(at_top), (ratio,), np.float32)
    total = carray(pointer(at_top + 4 * ratio), (ratio,), np.float32)
    sums = carray(pointer(at_top + 8 * ratio), (2, ratio, value_dim), np.float32)
    for r in range(ratio):
        at = at_scores + 4 * r * BLOCK_TOKENS
        if softcap > 0:
            scores = carray(pointer(at), (BLOCK_TOKENS,), np.float32)
            for j in range(BLOCK_TOKENS):
                if scores[j] > _LOWEST:
                    scores[j] = softcap * np.tanh(scores[j] / softcap)
        most = highest(at)
        if most > top[r]:
            factor = np.float32(np.exp(top[r] - most))
            top[r] = most
            total[r] *= factor
            for part in range(2):
                for d in range(value_dim):
                    sums[part, r, d] *= factor
        total[r] += exponents(at, top[r])


@njit(error_model="numpy", fastmath=_FAST)
def _turn(at: int, parts: Any) -> None:
    """The orthonormal Hadamard transform of each part, in place (the fast Walsh way)."""
    for size in parts:
        vector = carray(pointer(at), (size,), np.float32)
        width = 1
        while width < size:
            for first in range(0, size, 2 * width):
                for i in range(first, first + width):
                    left, right = vector[i], vector[i + width]
                    vector[i] = left + right
                    vector[i + width] = left - right
            width *= 2
        scale = np.float32(1 / np.sqrt(size))
        for i in range(size):
            vector[i] *= scale
        at += 4 * size


@cache
def _joiner() -> Any:
    """See `join`. `parts` is an array, so that there is one signature, and one file on disk."""
    mark = _mark("join")

    def joined(arguments: int, ratio: int, value_dim: int, item_size: int, parts: Any) -> int:
        if arguments == 0:
            return mark
        given = carray(pointer(arguments), (NUM_FIELDS,), np.int64)
        num_shares = given[NUM_SHARES]
        for head in range(given[NUM_HEADS]):
            first = given[SCRATCH] + 4 * head * num_shares * item_size
            for r in range(ratio):
                most = _LOWEST
                for share in range(num_shares):
                    found = carray(pointer(first + 4 * share * item_size), (item_size,), np.float32)
                    most = max(most, found[r])
                total = np.float32(0)
                if given[SINKS]:
                    sinks = carray(pointer(given[SINKS]), (given[NUM_HEADS], ratio), np.float32)
                    most = max(most, sinks[head, r])
                    total = np.float32(np.exp(sinks[head, r] - most))
                out = carray(
                    pointer(given[OUT] + 4 * (head * ratio + r) * value_dim),
                    (value_dim,),
                    np.float32,
                )
                plain, turned = 2 * ratio + r * value_dim, 2 * ratio + (ratio + r) * value_dim
                sums = carray(pointer(first + 4 * turned), (value_dim,), np.float32)
                for share in range(num_shares):
                    found = carray(pointer(first + 4 * share * item_size), (item_size,), np.float32)
                    weight = np.float32(np.exp(found[r] - most))
                    total += weight * found[ratio + r]
                    for d in range(value_dim):
                        kept = np.float32(0) if share == 0 else out[d]
                        out[d] = kept + weight * found[plain + d]
                        kept = np.float32(0) if share == 0 else sums[d]
                        sums[d] = kept + weight * found[turned + d]
                _turn(first + 4 * turned, parts)
                for d in range(value_dim):
                    out[d] = (out[d] + sums[d]) / total
        return mark

    def compiled(on_disk: bool) -> Any:
        number = types.int64
        signature = number(number, number, number, number, types.int64[::1])
        return njit(signature, cache=on_disk, error_model="numpy", fastmath=_FAST)(joined)

    return _kept(joined, compiled, lambda made: made(0, 0, 0, 0, _as_array(())) == mark)


@cache
def runner(parallel: bool) -> Any:
    """A pass of all items, one after another or on several threads: a function of the address of
    one of `passes`, the arguments and the number of items.
    """
    mark = _mark("run", parallel)

    def run(item_pass: int, arguments: int, num_items: int) -> int:
        for item in prange(num_items):
            call(item_pass, arguments, item)
        return mark

    def compiled(on_disk: bool) -> Any:
        signature = types.int64(types.int64, types.int64, types.int64)
        return njit(signature, cache=on_disk, nogil=True, parallel=parallel)(run)

    return _kept(run, compiled, lambda made: made(0, 0, 0) == mark)


def prepare(parallel: bool) -> None:
    """What every pair of formats needs besides its own passes."""
    _joiner()
    for kind in {False, parallel}:
        runner(kind)


def use_threads(num_threads: int) -> None:
    """How many threads a parallel runner takes, as far as there are so many."""
    set_num_threads(min(num_threads, config.NUMBA_NUM_THREADS))


@cache
def _as_array(parts: tuple[int, ...]) -> Any:
    return np.array(parts, np.int64)


def join(
    arguments: int, ratio: int, key_dim: int, value_dim: int, value_parts: tuple[int, ...]
) -> None:
    """After the last pass: the shares of each head become its output, by log-sum-exp; a sink only
    adds to the sum.
    """
    item_size = item_floats(key_dim, value_dim, ratio)
    _joiner()(arguments, ratio, value_dim, item_size, _as_array(value_parts))
