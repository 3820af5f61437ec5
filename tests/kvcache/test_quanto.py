"""optimum-quanto as a format: its own numbers, in blocks of ours, to the byte."""

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import QuantoQuantizedLayer

from kvchat.kvcache.quantize import (
    dequantize_keys,
    dequantize_values,
    quantize_keys,
    quantize_values,
)
from kvchat.memory.formats import QUANTO, KVFormat, part_bytes

each_format = pytest.mark.parametrize("fmt", QUANTO.values(), ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
SIDES = {
    "keys": (quantize_keys, dequantize_keys),
    "values": (quantize_values, dequantize_values),
}


def vectors(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """The library's packing undone: rows are laid over each other."""
    return torch.cat([packed >> bits * i & 2**bits - 1 for i in range(8 // bits)])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dim", [64, 80, 128])
@each_dtype
@each_format
def test_what_is_given_back_is_what_the_library_s_cache_keeps(
    fmt: KVFormat, dtype: torch.dtype, dim: int, side: str
):
    """Of [1, heads, tokens, D], which it quantizes as a whole, with 64 tokens a head."""
    quantize, dequantize = SIDES[side]
    x = vectors(1, 3, 64, dim, dtype=dtype)
    packed = quantize(x[0], fmt)
    assert packed.shape == (3, part_bytes(dim, fmt, dtype.itemsize))
    assert fmt.bits is not None
    kept = QuantoQuantizedLayer(nbits=fmt.bits)._quantize(x, axis=0)
    codes = unpacked(kept._data._data, fmt.bits)
    expected = (kept._scale * codes - kept._shift).view(x.shape)[0]
    assert torch.equal(dequantize(packed, fmt, dim, dtype), expected)


@each_format
def test_codes_and_scales_fill_the_bytes_and_nothing_beside_them(fmt: KVFormat):
    """Into a place amid other bytes, as blocks are written; one part as well as many."""
    x = vectors(2, 64, 64, dtype=torch.float16)
    size = part_bytes(64, fmt, 2)
    room = torch.full((2, size + 64), 7, dtype=torch.uint8)
    quantize_keys(x, fmt, room[:, 32 : 32 + size])
    assert bool((room[:, :32] == 7).all())
    assert bool((room[:, 32 + size :] == 7).all())
    assert torch.equal(room[:, 32 : 32 + size], quantize_keys(x, fmt))
    assert torch.equal(quantize_keys(x[1], fmt), room[1, 32 : 32 + size])
    found = dequantize_keys(room[1, 32 : 32 + size], fmt, 64, torch.float16)
    assert (found - x[1]).abs().max() < 8 / (2 ** int(fmt.bits or 0) - 1)


@each_format
def test_constant_groups_come_back_as_they_were(fmt: KVFormat):
    x = torch.zeros(1, 64, 64)
    x[0, 3], x[0, 5] = 2.5, -1.25
    assert torch.equal(dequantize_values(quantize_values(x, fmt), fmt, 64, torch.float32), x)
