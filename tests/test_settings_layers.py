"""The setting `layer_formats`: what is written is read back, and anything else is one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.errors import SettingsError
from kvchat.settings_layers import LayerFormats, layers_text, parse_layers
from kvchat.settings_schema import FORMAT_NAMES
from kvchat.wording import LANGUAGES
from tests.starts import resolve

names = st.sampled_from(FORMAT_NAMES)
numbers = st.integers(-200, 200)


@st.composite
def items(draw: st.DrawFn) -> LayerFormats:
    first, last = draw(numbers), draw(numbers)
    if (first < 0) == (last < 0):
        first, last = sorted((first, last))
    return LayerFormats(first, last, draw(names), draw(names))


@given(st.lists(items(), max_size=6))
def test_what_is_written_is_read_back(layers: list[LayerFormats]) -> None:
    assert parse_layers(layers_text(layers)) == tuple(layers)


@given(items(), st.integers(1, 300))
def test_numbers_are_layers_of_the_model_or_refused(one: LayerFormats, num_layers: int) -> None:
    """Against lists of Python, which count from the end in the same way."""
    layers = list(range(num_layers))
    try:
        expected = list(range(layers[one.first], layers[one.last] + 1))
    except IndexError:
        expected = []
    if expected:
        assert list(one.numbers(num_layers)) == expected
    else:
        with pytest.raises(SettingsError, match=str(num_layers)):
            one.numbers(num_layers)


@given(st.text(st.sampled_from("0123-=/, intfpquo48"), max_size=24) | st.text(max_size=12))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    refusal: SettingsError | None = None
    try:
        found = parse_layers(text)
    except SettingsError as error:
        refusal = error
    if refusal is None:
        assert parse_layers(layers_text(found)) == found
    else:
        assert refusal.code == "setting_not_layers"
        assert all("int8" in refusal.remedy(lang) for lang in LANGUAGES)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        (" , ", ""),
        ("0-1=int8, 29=fp/int8", "0-1=int8/int8, 29=fp/int8"),
        ("3 - 5 = int6/int4", "3-5=int6/int4"),
        ("-2--1=fp,0--1=int4", "-2--1=fp/fp, 0--1=int4/int4"),
    ],
)
def test_settings_keep_one_way_of_writing(text: str, kept: str) -> None:
    assert resolve(flags={"layer_formats": text}).layer_formats == kept


@pytest.mark.parametrize(
    "value",
    ["0", "=int8", "0=", "0=int3", "5-2=int8", "-1--3=int8", "0=int8/", "0=int8/fp/fp", "a=int8",
     "0=int8 1=int8", "1.5=int8", 7, ["0=int8"], None],
)  # fmt: skip
def test_what_is_no_list_of_layers(value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(flags={"layer_formats": value})
    for lang in LANGUAGES:
        assert "\n" not in caught.value.line(lang)
        assert "0-1=int8" in caught.value.remedy(lang)
