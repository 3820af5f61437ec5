"""The plain torch quantizer of blocks: the truth about the bytes that every kernel reads.

A vector x of one token and head is stored rotated, x' = x H, with one fp16 scale s, the absmax of
x'. H is an orthonormal Hadamard matrix: it spreads outlier channels over all dimensions, and as
(q H) · (k H) = q · k no score changes (QuaRot, arXiv 2404.00456). With b bits:

    int8            code = round(x'/s * 127)                 value = code * s / 127
    fp8             code = float8_e4m3fn(x'/s * 448)         value = code * s / 448
    b = 6, 5, 4, 2  code = floor(x'/s * 2^(b-1)) + 2^(b-1)   value = (code - 2^(b-1) + ½) s/2^(b-1)

A part, the keys or values of 64 tokens of one head, is its planes, then 64 scales. A code of 6 or
5 bits is split into its 4 high bits and the rest, a plane each. In a plane of w bits a byte holds
8/w values, n·w/8 apart, the first in the lowest bits: of n = 64 tokens for keys, whose planes are
[D, 64], of n = D dimensions for values, whose planes are [64, D].

The formats of optimum-quanto (see quanto.py) are not rotated: after the planes come the scales, and
then the shifts, of groups of values, in the dtype of what is stored.

Knows no block, pool or layer: any leading dimensions are so many parts.
"""

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from kvchat.errors import ModelError
from kvchat.kvcache import quanto
from kvchat.memory.formats import BLOCK_TOKENS, KVFormat, part_bytes

_SCALES_BYTES = 2 * BLOCK_TOKENS
_FP16_MOST = 65504.0
# The axes of [..., tokens, dims] along which a plane packs several values into a byte.
_TOKENS, _DIMS = -2, -1


@lru_cache(maxsize=32)
def rotation(dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """H [dim, dim]: orthonormal and symmetric, so its own inverse. Shared: not to be written to.

    Hadamard matrices (Sylvester's order) along the diagonal, of the sizes of `rotation_parts`.
    """
    blocks: Tensor = torch.block_diag(*map(_hadamard, rotation_parts(dim)))
    return blocks.to(device, dtype)


def rotation_parts(dim: int) -> tuple[int, ...]:
    """Three equal sizes for 3 * 2^k, else the powers of two that make up `dim`, the largest first:
    80 = 64 + 16.
    """
    third = dim // 3
    if dim % 3 == 0 and third & (third - 1) == 0:
        return (third,) * 3
    return tuple(1 << bit for bit in reversed(range(dim.bit_length())) if dim >> bit & 1)


def _hadamard(size: int) -> Tensor:
    matrix: Tensor = torch.ones(1, 1)
    while len(matrix) < size:
        upper = torch.cat([matrix, matrix], dim=1)
        matrix = torch.cat([upper, torch.cat([matrix, -matrix], dim=1)])
    return matrix.div_(size**0.5)


def quantize_keys(x: Tensor, fmt: KVFormat, out: Tensor | None = None) -> Tensor:
    """Parts of keys: x [..., 64, D] of any float dtype -> uint8 [..., part_bytes].

    Written into `out` where it is given: uint8 on the same device, of that shape, its bytes side by
    side in the last dimension and at multiples of 4 in memory. `fp` stores the bytes of x as they
    are. In the other formats a vector with NaN or infinity in it, or one too large to be rotated in
    fp32, is stored as zeros, and no other is touched by it; |x'| beyond 65504, the largest fp16,
    saturates there. Not so with groups: what the library makes of those is stored. Raises
    ModelError where the format does not serve D.
    """
    return _quantize(x, fmt, out, _TOKENS)


def quantize_values(x: Tensor, fmt: KVFormat, out: Tensor | None = None) -> Tensor:
    """Parts of values; otherwise as `quantize_keys`."""
    return _quantize(x, fmt, out, _DIMS)


def dequantize_keys(packed: Tensor, fmt: KVFormat, dim: int, dtype: torch.dtype) -> Tensor:
    """Keys as near as the format kept them: uint8 [..., part_bytes] -> [..., 64, dim].

    `dtype` of `fp` is the one that was stored, and the result a view of `packed`; of formats with
    groups it is the one that was stored, too.
    """
    return _dequantize(packed, fmt, dim, dtype, _TOKENS)


def dequantize_values(packed: Tensor, fmt: KVFormat, dim: int, dtype: torch.dtype) -> Tensor:
    """Values; otherwise as `dequantize_keys`."""
    return _dequantize(packed, fmt, dim, dtype, _DIMS)


def unpack_keys(packed: Tensor, fmt: KVFormat, dim: int) -> tuple[Tensor, Tensor]:
    """What a kernel reads of keys, still rotated: value / s in fp32 [..., 64, dim], within -1 and
    1, and s in fp32 [..., 64]. Not for `fp`, which has no codes, nor for formats with groups.
    """
    return _unpack(packed, fmt, dim, _TOKENS)


def unpack_values(packed: Tensor, fmt: KVFormat, dim: int) -> tuple[Tensor, Tensor]:
    """What a kernel reads of values; otherwise as `unpack_keys`."""
    return _unpack(packed, fmt, dim, _DIMS)


def _quantize(x: Tensor, fmt: KVFormat, out: Tensor | None, axis: int) -> Tensor:
    dim = x.shape[-1]
    if not fmt.serves(dim):
        raise ModelError("kv_format_dim", format=fmt.name, dim=dim)
    shape = (*x.shape[:-2], part_bytes(dim, fmt, x.dtype.itemsize))
    if out is None:
        out = torch.empty(shape, dtype=torch.uint8, device=x.device)
    assert x.shape[-2] == BLOCK_TOKENS
    assert out.shape == shape
    if fmt.bits is None:
        out.view(x.dtype).unflatten(-1, x.shape[-2:]).copy_(x)
        return out
    if fmt.group is not None:
        return _quantize_groups(x, fmt, fmt.group, out, axis)
    rotated = x.float() @ rotation(dim, x.device, torch.float32)
    scales = _scales(rotated)
    out[..., -_SCALES_BYTES:].view(torch.float16).copy_(scales)
    codes = _codes(rotated, scales.float().unsqueeze(-1), fmt)
    _pack(codes, fmt, out, axis)
    return out


def _quantize_groups(x: Tensor, fmt: KVFormat, group: int, out: Tensor, axis: int) -> Tensor:
    assert fmt.bits is not None
    codes, scales, shifts = quanto.quantize(x.reshape(-1, *x.shape[-2:]), fmt.bits, group)
    _pack(codes.view(x.shape), fmt, out, axis)
    rest = out[..., BLOCK_TOKENS * x.shape[-1] * fmt.bits // 8 :].view(x.dtype)
    rest.copy_(torch.cat([scales, shifts], dim=-1).view(rest.shape))
    return out


def _scales(rotated: Tensor) -> Tensor:
    """fp16 [..., 64]: the smallest that is not below the absmax; 0 for a vector that is not finite.

    Rounded to the nearest, it could be below, and the largest value be clipped by more than half a
    step.
    """
    absmax = rotated.abs().amax(dim=-1)
    absmax.nan_to_num_(nan=0.0, posinf=0.0).clamp_(max=_FP16_MOST)
    scales = absmax.to(torch.float16)
    # The next larger fp16 is the next larger integer.
    scales.view(torch.int16).add_(scales.float() < absmax)
    return scales


def _codes(rotated: Tensor, scales: Tensor, fmt: KVFormat) -> Tensor:
    """uint8 [..., 64, D] of the codes' bits. Overwrites `rotated`."""
    top = _top(fmt)
    # A vector of scale 0 becomes one of zeros, also where 0 * infinity is NaN.
    scaled = rotated.mul_((top / scales).nan_to_num_(posinf=0.0)).nan_to_num_()
    if fmt.name == "fp8":
        # A type without infinity: whether a cast beyond 448 saturates or gives NaN is the device's.
        return scaled.clamp_(-top, top).to(torch.float8_e4m3fn).view(torch.uint8)
    if fmt.bits == 8:
        return scaled.round_().clamp_(-top, top).to(torch.int8).view(torch.uint8)
    # The cast cuts off what is behind the point, which is `floor`, as nothing is below zero.
    return scaled.add_(top).clamp_(0, 2 * top - 1).to(torch.uint8)


def _top(fmt: KVFormat) -> float:
    """What x' = s becomes before it is rounded to a code."""
    assert fmt.bits is not None
    return {"int8": 127.0, "fp8": 448.0}.get(fmt.name, 2.0 ** (fmt.bits - 1))


def _planes(packed: Tensor, fmt: KVFormat, dim: int, axis: int) -> list[Tensor]:
    """Views of the planes in the order [tokens, dims], shorter along the axis they pack."""
    ends = [0]
    for bits in fmt.planes:
        ends.append(ends[-1] + BLOCK_TOKENS * dim * bits // 8)
    flat = [packed[..., start:stop] for start, stop in pairwise(ends)]
    if axis == _TOKENS:
        return [plane.unflatten(-1, (dim, -1)).mT for plane in flat]
    return [plane.unflatten(-1, (BLOCK_TOKENS, -1)) for plane in flat]


def _pack(codes: Tensor, fmt: KVFormat, out: Tensor, axis: int) -> None:
    planes = _planes(out, fmt, codes.shape[-1], axis)
    below = sum(fmt.planes)
    for plane, bits in zip(planes, fmt.planes, strict=True):
        below -= bits
        part = codes >> below & (1 << bits) - 1 if len(planes) > 1 else codes
        first, *rest = part.chunk(8 // bits, axis)
        plane.copy_(first)
        for place, piece in enumerate(rest, 1):
            plane.add_(piece, alpha=1 << bits * place)


def _unpack(packed: Tensor, fmt: KVFormat, dim: int, axis: int) -> tuple[Tensor, Tensor]:
    assert fmt.group is None
    codes = _unpacked(packed, fmt, dim, axis)
    scales = packed[..., -_SCALES_BYTES:].view(torch.float16).float()
    return _normalised(codes, fmt), scales


def _unpacked(packed: Tensor, fmt: KVFormat, dim: int, axis: int) -> Tensor:
    """The codes, uint8 [..., 64, dim]."""
    codes: Tensor | None = None
    for plane, bits in zip(_planes(packed, fmt, dim, axis), fmt.planes, strict=True):
        pieces = [plane >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        part = torch.cat(pieces, axis)
        codes = part if codes is None else codes << bits | part
    assert codes is not None
    return codes


def _normalised(codes: Tensor, fmt: KVFormat) -> Tensor:
    """The codes' values over the scale, fp32."""
    top = _top(fmt)
    if fmt.name == "fp8":
        return codes.view(torch.float8_e4m3fn).float().div_(top)
    if fmt.bits == 8:
        return codes.view(torch.int8).float().div_(top)
    return codes.float().sub_(top - 0.5).div_(top)


def _dequantize(packed: Tensor, fmt: KVFormat, dim: int, dtype: torch.dtype, axis: int) -> Tensor:
    if fmt.bits is None:
        stored: Tensor = packed.view(dtype).unflatten(-1, (BLOCK_TOKENS, dim))
        return stored
    if fmt.group is not None:
        return _dequantize_groups(packed, fmt, fmt.group, dim, dtype, axis)
    values, scales = _unpack(packed, fmt, dim, axis)
    values.mul_(scales.unsqueeze(-1))
    found: Tensor = values @ rotation(dim, packed.device, torch.float32)
    return found.to(dtype)


def _dequantize_groups(
    packed: Tensor, fmt: KVFormat, group: int, dim: int, dtype: torch.dtype, axis: int
) -> Tensor:
    assert fmt.bits is not None
    codes = _unpacked(packed, fmt, dim, axis)
    rest = packed[..., BLOCK_TOKENS * dim * fmt.bits // 8 :].view(dtype)
    scales, shifts = rest.reshape(-1, rest.shape[-1]).chunk(2, dim=-1)
    shape = codes.shape
    found = quanto.dequantize(codes.reshape(-1, *shape[-2:]), scales, shifts, fmt.bits, group)
    return found.view(shape)
