"""Formats: bytes against the published bits, the order of exactness, and pairs as people write
them.
"""

import pytest

from kvchat.errors import SettingsError
from kvchat.memory.formats import (
    FORMATS,
    KNOWN,
    QUANTO,
    FormatPair,
    layer_pairs,
    lower_of,
    part_bytes,
    stored_pair,
    vector_bytes,
)
from kvchat.settings_schema import FORMAT_NAMES
from kvchat.wording import LANGUAGES

# Bits of a stored value, scales apart, as DESIGN's table gives them.
BITS = {"fp": 16, "int8": 8, "int6": 6, "fp8": 8, "int5": 5, "int4": 4, "int2": 2}
DIMS = (64, 80, 96, 112, 128, 256)
pair = FormatPair.parse


def test_the_most_exact_come_first_and_their_planes_hold_their_bits():
    assert list(FORMATS) == list(BITS)
    for name, fmt in FORMATS.items():
        assert str(fmt) == fmt.name == name
        assert fmt.bits == (None if name == "fp" else BITS[name])
        assert sum(fmt.planes) == (fmt.bits or 0)


@pytest.mark.parametrize("name", FORMATS)
def test_bits_of_a_format_with_its_scale_at_head_size_64(name: str):
    scale = 0 if name == "fp" else 0.25
    assert vector_bytes(64, FORMATS[name], 2) * 8 / 64 == BITS[name] + scale


@pytest.mark.parametrize("dim", [64, 80, 96, 100, 112, 128, 256])
def test_head_sizes_that_are_no_multiple_of_a_byte_take_whole_bytes(dim: int):
    for name, fmt in FORMATS.items():
        stored = vector_bytes(dim, fmt, 2) - (0 if name == "fp" else 2)
        assert dim * BITS[name] / 8 <= stored < dim * BITS[name] / 8 + 1
        assert fmt.serves(dim) == (name == "fp" or dim != 100)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", DIMS)
def test_a_part_is_64_vectors_and_any_two_parts_a_multiple_of_16_bytes(dim: int, name: str):
    scales = 0 if name == "fp" else 128
    assert part_bytes(dim, FORMATS[name], 2) == 64 * dim * BITS[name] // 8 + scales
    assert part_bytes(dim, FORMATS[name], 2) % 16 == 0


def test_only_fp_depends_on_the_dtype():
    wider = {name for name, f in FORMATS.items() if part_bytes(64, f, 4) != part_bytes(64, f, 2)}
    assert wider == {"fp"}
    assert part_bytes(64, FORMATS["fp"], 4) == 64 * 64 * 4


@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("dim", DIMS)
def test_groups_have_a_scale_and_a_shift_for_64_values(dim: int, dtype_bytes: int):
    for name, fmt in QUANTO.items():
        bits = int(name[-1])
        stored = part_bytes(dim, fmt, dtype_bytes)
        assert stored == 64 * dim * bits // 8 + 64 * dim // 64 * 2 * dtype_bytes
        assert fmt.serves(dim)
        assert not fmt.serves(dim + 8)


def test_names_of_settings_are_names_of_formats():
    assert set(FORMAT_NAMES) == set(KNOWN)
    assert [name for name in KNOWN if not FormatPair.parse(name).is_offered] == list(QUANTO)


@pytest.mark.parametrize(
    ("wanted", "least", "dims", "stored"),
    [
        ("int4/int4", None, (64, 64), "int4/int4"),
        ("int4/int4", "int8/int2", (64, 64), "int8/int4"),
        ("fp/fp", "int8/int8", (64, 64), "fp/fp"),
        ("int4/fp", "fp/int8", (64, 64), "fp/fp"),
        ("int4/int4", "int8/int8", (100, 64), "fp/int8"),
        ("quanto4/quanto2", None, (72, 64), "fp/quanto2"),
        ("quanto2/int2", "quanto4/quanto4", (64, 64), "quanto4/quanto4"),
    ],
)
def test_stored_in_the_better_of_what_is_asked_for_and_the_least(
    wanted: str, least: str | None, dims: tuple[int, int], stored: str
):
    found = stored_pair(pair(wanted), *dims, None if least is None else pair(least))
    assert str(found) == stored


def test_layers_are_counted_from_both_ends_and_the_later_pair_holds():
    found = layer_pairs("0-2=int8, -1=fp/int8, 1=int4", 6)
    assert {number: str(one) for number, one in found.items()} == {
        0: "int8/int8", 1: "int4/int4", 2: "int8/int8", 5: "fp/int8",
    }  # fmt: skip
    assert layer_pairs("", 6) == {}
    assert set(layer_pairs("-6--1=fp", 6)) == set(layer_pairs("0--1=fp", 6)) == set(range(6))


@pytest.mark.parametrize("text", ["6=int8", "-7=int8", "0-6=int8", "4--3=int8"])
def test_layers_that_a_model_does_not_have_are_said(text: str):
    with pytest.raises(SettingsError) as caught:
        layer_pairs(text, 6)
    for lang in LANGUAGES:
        assert "6" in caught.value.message(lang)
        assert "layer_formats" in caught.value.remedy(lang)
        assert "\n" not in caught.value.line(lang)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("int6/int4", "int6/int4"),
        ("fp/fp", "fp/fp"),
        ("int8", "int8/int8"),
        ("fp", "fp/fp"),
        (" fp8 / int2 ", "fp8/int2"),
    ],
)
def test_pairs_are_read_as_they_are_written(text: str, written: str):
    assert str(pair(text)) == written
    assert pair(written) == pair(text)


@pytest.mark.parametrize(
    "text", ["", "/", "int6/", "/int4", "int3", "INT8", "int6/int4/int2", "int6-int4", "fp16"]
)
def test_what_is_no_pair_is_refused_with_the_choice(text: str):
    with pytest.raises(SettingsError) as caught:
        pair(text)
    for lang in LANGUAGES:
        assert f"'{text}'" in caught.value.message(lang)
        assert "fp, int8, int6, fp8, int5, int4, int2" in caught.value.remedy(lang)


@pytest.mark.parametrize(
    ("one", "other", "enough", "lower"),
    [
        ("fp/fp", "int8/int8", True, "int8/int8"),
        ("int8/int8", "int8/int8", True, "int8/int8"),
        ("int6/int6", "fp8/fp8", True, "fp8/fp8"),
        ("fp8/fp8", "int5/int5", True, "int5/int5"),
        ("fp8/int8", "int6/int8", False, "fp8/int8"),
        ("int8/int4", "int6/int6", False, "int6/int4"),
        ("int4/int8", "int6/int6", False, "int4/int6"),
        ("int2/int2", "fp/fp", False, "int2/int2"),
    ],
)
def test_a_pair_is_enough_where_both_halves_are(one: str, other: str, enough: bool, lower: str):
    assert pair(one).at_least(pair(other)) == enough
    assert str(lower_of(pair(one), pair(other))) == lower
    assert lower_of(pair(other), pair(one)) == pair(lower)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("fp/fp", 0),
        ("int8/int8", 64),
        ("fp/int8", 64),
        ("int8/fp", 64),
        ("int6/int8", 256),
        ("fp8/fp8", 256),
        ("fp/int4", 256),
        ("int6/int4", 256),
    ],
)
def test_more_tokens_stay_as_computed_where_more_is_lost(text: str, tokens: int):
    assert pair(text).hot_tokens == tokens
