"""A part's bytes one by one in plain Python, from the agreement's words: slow, and sharing nothing
with the quantizer.
"""

import math
import struct

TOKENS = 64


def hadamard(dim: int) -> list[list[float]]:
    """H, block by block along the diagonal: (-1)^(ones in row & column) / sqrt(size)."""
    blocks = {64: [64], 80: [64, 16], 96: [32] * 3, 112: [64, 32, 16], 128: [128], 256: [256]}[dim]
    rows = [[0.0] * dim for _ in range(dim)]
    start = 0
    for size in blocks:
        for i in range(size):
            for j in range(size):
                sign = -1 if (i & j).bit_count() % 2 else 1
                rows[start + i][start + j] = sign / math.sqrt(size)
        start += size
    return rows


def value(code: int, name: str) -> float:
    """What a code stands for, over the scale."""
    if name == "int8":
        return (code - 256 if code > 127 else code) / 127
    if name == "fp8":
        return _e4m3(code) / 448
    half = 2 ** (int(name[3:]) - 1)
    return (code - half + 0.5) / half


def _e4m3(code: int) -> float:
    """1 sign bit, 4 bits of exponent with a bias of 7, 3 of mantissa; no infinities."""
    sign = -1 if code & 0x80 else 1
    exponent, mantissa = code >> 3 & 0xF, code & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def part(codes: list[list[int]], scales: list[float], name: str, keys: bool) -> bytes:
    """codes[token][dim] and one scale a token -> the planes, then the scales."""
    # A row of keys is one dimension of all tokens, a row of values one token.
    rows = [list(row) for row in (zip(*codes, strict=True) if keys else codes)]
    planes = {
        "int8": [(8, lambda c: c)],
        "fp8": [(8, lambda c: c)],
        "int6": [(4, lambda c: c >> 2), (2, lambda c: c & 3)],
        "int5": [(4, lambda c: c >> 1), (1, lambda c: c & 1)],
        "int4": [(4, lambda c: c)],
        "int2": [(2, lambda c: c)],
    }[name]
    out = bytearray()
    for bits, piece in planes:
        for row in rows:
            out += _row([piece(code) for code in row], bits)
    for scale in scales:
        out += struct.pack("<e", scale)
    return bytes(out)


def _row(row: list[int], bits: int) -> bytes:
    n = len(row)
    if bits == 8:
        return bytes(row)
    if bits == 4:
        return bytes(row[j] + 16 * row[j + n // 2] for j in range(n // 2))
    if bits == 2:
        return bytes(sum(row[j + n // 4 * i] * 4**i for i in range(4)) for j in range(n // 4))
    return bytes(sum(row[j + n // 8 * i] * 2**i for i in range(8)) for j in range(n // 8))
