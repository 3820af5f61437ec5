"""The quantizer: every byte against a slow packer, every error within half a step, and what must
not spread.
"""

import random
import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvchat.errors import ModelError
from kvchat.kvcache.quantize import (
    dequantize_keys,
    dequantize_values,
    quantize_keys,
    quantize_values,
    rotation,
    unpack_keys,
    unpack_values,
)
from kvchat.memory.formats import FORMATS, KVFormat, part_bytes
from tests.kvcache import slow_packer

DIMS = (64, 80, 96, 112, 128, 256)
CODED = [fmt for fmt in FORMATS.values() if fmt.bits is not None]
SIDES = {
    "keys": (quantize_keys, dequantize_keys, unpack_keys),
    "values": (quantize_values, dequantize_values, unpack_values),
}
LEAST, MOST = 2.0**-24, 65504.0

each_format = pytest.mark.parametrize("fmt", CODED, ids=str)
each_dim = pytest.mark.parametrize("dim", DIMS)
each_side = pytest.mark.parametrize("side", SIDES)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact_rotation(dim: int) -> Tensor:
    return torch.tensor(slow_packer.hadamard(dim), dtype=torch.float64)


def half_step(fmt: KVFormat, rotated: Tensor) -> Tensor:
    """How far a value over its scale may be off: half the distance of neighbouring codes."""
    if fmt.name == "int8":
        return torch.full_like(rotated, 0.5 / 127)
    if fmt.name == "fp8":
        # 3 bits of mantissa, and equal steps of 2^-9 below 2^-6.
        return torch.maximum(rotated.abs() / 16, torch.full_like(rotated, 2.0**-10 / 448))
    assert fmt.bits is not None
    return torch.full_like(rotated, 0.5 / 2 ** (fmt.bits - 1))


# --- rotation ---------------------------------------------------------------------------------


@each_dim
def test_the_rotation_is_the_agreed_one_orthonormal_and_symmetric(dim: int):
    found = rotation(dim, torch.device("cpu"), torch.float64)
    # Entries are made in fp32.
    assert torch.allclose(found, exact_rotation(dim), rtol=1e-7, atol=0)
    assert torch.equal(found, found.T)
    assert torch.allclose(found @ found, torch.eye(dim, dtype=torch.float64), atol=1e-6)
    assert rotation(dim, torch.device("cpu"), torch.float64) is found


@each_dim
@each_format
def test_scores_of_rotated_queries_and_codes_are_those_of_what_is_given_back(
    fmt: KVFormat, dim: int
):
    keys, query = normal(64, dim), normal(5, dim, seed=1)
    packed = quantize_keys(keys, fmt)
    codes, scales = unpack_keys(packed, fmt, dim)
    rotated = (query @ rotation(dim, query.device, query.dtype)) @ codes.T * scales
    plain = query @ dequantize_keys(packed, fmt, dim, torch.float32).T
    assert torch.allclose(rotated, plain, atol=1e-4, rtol=0)


@each_dim
@each_format
def test_outputs_summed_in_rotated_space_are_those_of_what_is_given_back(fmt: KVFormat, dim: int):
    weights = torch.softmax(normal(5, 64, seed=1), dim=-1)
    packed = quantize_values(normal(64, dim), fmt)
    codes, scales = unpack_values(packed, fmt, dim)
    rotated = (weights * scales) @ codes @ rotation(dim, codes.device, codes.dtype)
    plain = weights @ dequantize_values(packed, fmt, dim, torch.float32)
    assert torch.allclose(rotated, plain, atol=1e-5, rtol=0)


# --- bytes ------------------------------------------------------------------------------------


def some_codes(name: str, dim: int, seed: int) -> tuple[list[list[int]], list[float]]:
    """Codes by chance, in each vector one that is the largest, and a scale of fp16 for each."""
    chance = random.Random(seed)
    most = {"int8": 127, "fp8": 0x7E}.get(name) or 2 ** int(name[3:]) - 1
    if name == "int8":
        drawn = [*range(127), *range(130, 256)]
    elif name == "fp8":
        # Not NaN, and neither of the two zeros, which rounding errors of a rotation may swap.
        drawn = [code for code in range(256) if code & 0x7F not in (0, 0x7E, 0x7F)]
    else:
        drawn = list(range(most + 1))
    codes = [[chance.choice(drawn) for _ in range(dim)] for _ in range(slow_packer.TOKENS)]
    for token in codes:
        token[chance.randrange(dim)] = most
    raw = [struct.pack("<H", chance.randrange(0x1000, 0x6000)) for _ in codes]
    return codes, [struct.unpack("<e", two)[0] for two in raw]


def vectors_of(codes: list[list[int]], scales: list[float], name: str) -> Tensor:
    """Vectors whose rotation lies amid the codes' cells, but for one value, the absmax."""
    values = torch.tensor(
        [[slow_packer.value(code, name) for code in token] for token in codes], dtype=torch.float64
    )
    # A little below the scale, or the rounding of a rotation could ask for the next larger one.
    values.scatter_(1, values.argmax(dim=1, keepdim=True), 1 - 2.0**-13)
    scaled = values * torch.tensor(scales, dtype=torch.float64).unsqueeze(1)
    return (scaled @ exact_rotation(values.shape[1])).float()


@each_side
@each_dim
@each_format
def test_every_bit_lies_where_the_slow_packer_puts_it(fmt: KVFormat, dim: int, side: str):
    quantize, _, unpack = SIDES[side]
    codes, scales = some_codes(fmt.name, dim, seed=dim)
    expected = slow_packer.part(codes, scales, fmt.name, keys=side == "keys")
    found = quantize(vectors_of(codes, scales, fmt.name), fmt)
    assert bytes(found.tolist()) == expected
    assert len(expected) == part_bytes(dim, fmt, 2)
    values, read_scales = unpack(found, fmt, dim)
    known = [[slow_packer.value(code, fmt.name) for code in token] for token in codes]
    assert torch.allclose(values, torch.tensor(known), rtol=1e-6, atol=0)
    assert read_scales.tolist() == scales


@each_side
@each_format
def test_leading_dimensions_are_so_many_parts_of_their_own(fmt: KVFormat, side: str):
    quantize = SIDES[side][0]
    x = normal(3, 2, 64, 80)
    together = quantize(x, fmt)
    assert together.shape == (3, 2, part_bytes(80, fmt, 4))
    for layer in range(3):
        for head in range(2):
            alone = quantize(x[layer, head], fmt)
            # Another shape may be summed in another order, and a code at an edge differ by 1.
            assert (alone != together[layer, head]).float().mean() < 0.001


@each_side
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_parts_are_written_where_they_belong_in_a_block(fmt: KVFormat, side: str):
    """Into a view with gaps, from a view with gaps, and nothing beside it."""
    quantize, dequantize, _ = SIDES[side]
    x = normal(3, 2, 70, 64)[:, :, 5:69]
    size = part_bytes(64, fmt, 4)
    block = torch.full((3, 2, size + 48), 7, dtype=torch.uint8)
    target = block[..., 16 : 16 + size]
    assert quantize(x, fmt, out=target) is target
    assert torch.equal(target, quantize(x, fmt))
    assert (block[..., :16] == 7).all()
    assert (block[..., 16 + size :] == 7).all()
    assert torch.equal(
        dequantize(target, fmt, 64, x.dtype), dequantize(target.clone(), fmt, 64, x.dtype)
    )


@each_side
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 100])
def test_as_computed_is_kept_bit_by_bit(dim: int, dtype: torch.dtype, side: str):
    quantize, dequantize, _ = SIDES[side]
    x = normal(2, 64, dim).to(dtype)
    x[0, 3, 5], x[1, 4, 6], x[1, 5, 7] = torch.nan, torch.inf, -0.0
    packed = quantize(x, FORMATS["fp"])
    assert packed.shape == (2, part_bytes(dim, FORMATS["fp"], dtype.itemsize))
    assert bytes(packed[0].tolist()) == bytes(x[0].view(torch.uint8).flatten().tolist())
    found = dequantize(packed, FORMATS["fp"], dim, dtype)
    assert torch.equal(found.view(torch.uint8), x.view(torch.uint8))


@each_format
def test_the_source_is_left_as_it_was(fmt: KVFormat):
    for dim in (64, 128):
        x = normal(64, dim)
        before = x.clone()
        quantize_keys(x, fmt)
        assert torch.equal(x, before)


@each_format
def test_a_head_size_without_whole_bytes_is_refused(fmt: KVFormat):
    with pytest.raises(ModelError, match="100"):
        quantize_keys(normal(64, 100), fmt)


# --- errors -----------------------------------------------------------------------------------


def check_half_a_step(x: Tensor, fmt: KVFormat, side: str) -> None:
    """In rotated space, no value is further off than half a step of its vector's scale."""
    quantize, _, unpack = SIDES[side]
    dim = x.shape[-1]
    values, scales = unpack(quantize(x, fmt), fmt, dim)
    rotated = x.double() @ exact_rotation(dim)
    scale = scales.double().unsqueeze(-1)
    # The rounding of a rotation in fp32, which moves an edge of a cell as well.
    rounding = rotated.abs().amax(dim=-1, keepdim=True) * 1e-6
    off = (values.double() * scale - rotated).abs()
    allowed = half_step(fmt, rotated / scale.clamp(min=LEAST)) * scale + rounding
    assert (off <= allowed).all()
    assert (values.abs() <= 1).all()
    # The smallest fp16 that is not below the absmax.
    absmax = rotated.abs().amax(dim=-1)
    assert (scales >= absmax * (1 - 1e-6)).all()
    assert (scales <= absmax * (1 + 2.0**-10 + 1e-6) + LEAST).all()


@each_side
@each_dim
@each_format
def test_no_value_is_off_by_more_than_half_a_step(fmt: KVFormat, dim: int, side: str):
    check_half_a_step(normal(2, 64, dim), fmt, side)


@each_format
@given(
    st.floats(-22.0, 13.0),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None)
def test_at_any_size_whatever_way_the_scale_is_rounded(
    fmt: KVFormat, exponent: float, dtype: torch.dtype, seed: int
):
    """Scales from the smallest fp16 to near the largest, so rounded by up to their own size."""
    check_half_a_step((normal(64, 64, seed=seed) * 2.0**exponent).to(dtype), fmt, "values")


@each_format
def test_an_absmax_just_above_an_fp16_number_is_not_clipped(fmt: KVFormat):
    """Rounded to the nearest, the scale would be 1 and the largest value half a bit beyond it."""
    rotated = torch.linspace(-1, 1 + 2.0**-12, 64).double().repeat(64, 1)
    check_half_a_step((rotated @ exact_rotation(64)).float(), fmt, "keys")


@each_side
@each_dim
@each_format
def test_zeros_are_given_back_as_zeros(fmt: KVFormat, dim: int, side: str):
    quantize, dequantize, unpack = SIDES[side]
    x = normal(64, dim)
    x[10] = 0.0
    packed = quantize(x, fmt)
    assert unpack(packed, fmt, dim)[1][10] == 0
    found = dequantize(packed, fmt, dim, torch.float32)
    assert (found[10] == 0).all()
    assert (found.abs().amax(dim=-1) > 0).sum() == 63


@each_format
def test_beyond_fp16_a_vector_saturates_and_keeps_its_signs(fmt: KVFormat):
    rotated = torch.full((64, 64), 2 * MOST, dtype=torch.float64)
    rotated[:, ::3] *= -1
    x = (rotated @ exact_rotation(64)).float()
    values, scales = unpack_keys(quantize_keys(x, fmt), fmt, 64)
    assert (scales == MOST).all()
    assert torch.equal(values.sign().double(), rotated.sign())
    assert (values.abs() >= 1 - half_step(fmt, torch.ones_like(values))).all()


@each_side
@each_format
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_is_not_finite_becomes_zeros_and_touches_no_other_vector(
    bad: float, fmt: KVFormat, side: str
):
    quantize, dequantize, _ = SIDES[side]
    x = normal(2, 64, 64)
    clean, dirty = x.clone(), x.clone()
    clean[0, 33] = 0.0
    # One value, or one vector whose sums are beyond fp32.
    dirty[0, 33, slice(None) if bad == 3e38 else 7] = bad
    expected, found = (dequantize(quantize(one, fmt), fmt, 64, x.dtype) for one in (clean, dirty))
    assert torch.equal(found, expected)
    assert (found[0, 33] == 0).all()


def test_the_rotation_pays_where_few_channels_are_large():
    """int4 with it and without: keys with 3 channels of 64 that are 20 times the others."""
    x = normal(64, 64)
    x[:, [5, 23, 40]] *= 20
    top = x.abs().amax(dim=-1, keepdim=True)
    codes = ((x / top * 8).floor() + 8).clamp(0, 15)
    plain = (codes - 7.5) / 8 * top
    rotated = dequantize_keys(quantize_keys(x, FORMATS["int4"]), FORMATS["int4"], 64, x.dtype)
    errors = [(found - x).square().mean().item() for found in (rotated, plain)]
    assert errors[0] < errors[1] / 2


@each_side
def test_more_bits_are_nearer(side: str):
    quantize, dequantize, _ = SIDES[side]
    x = normal(4, 64, 64)

    def error(name: str) -> float:
        found = dequantize(quantize(x, FORMATS[name]), FORMATS[name], 64, x.dtype)
        return (found - x).square().mean().item()

    errors = [error(name) for name in ("fp", "int8", "int6", "int5", "int4", "int2")]
    assert errors[0] == 0
    assert all(one * 3 < other for one, other in pairwise(errors[1:]))
    assert error("int8") < error("fp8") < error("int4")
