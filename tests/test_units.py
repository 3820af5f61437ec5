"""Sizes as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.units import GIB, MIB, format_least, format_size, parse_size


@given(st.integers(1, 2**50))
def test_what_is_shown_as_the_least_is_enough(size_bytes: int) -> None:
    shown = format_least(size_bytes)
    assert size_bytes <= parse_size(shown) <= max(size_bytes * 1.11, size_bytes + 1024)


@pytest.mark.parametrize(
    ("size_bytes", "nearest", "least"),
    [
        (513 * MIB + 1, "513 MiB", "514 MiB"),
        (int(1.501 * MIB), "1.5 MiB", "1.6 MiB"),
        (2 * GIB, "2.00 GiB", "2.00 GiB"),
        (2000 * GIB + 1, "2,000.00 GiB", "2,000.01 GiB"),
        (1, "1 B", "1 B"),
    ],
)
def test_nearest_and_least(size_bytes: int, nearest: str, least: str) -> None:
    assert (format_size(size_bytes), format_least(size_bytes)) == (nearest, least)
