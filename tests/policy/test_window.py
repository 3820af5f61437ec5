"""Which blocks of turns may go: never the first or newest of a turn, nor what is not all inside."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.policy.window import inside


def test_the_middle_of_each_turn_the_oldest_first():
    assert inside([(640, 1280), (0, 640)], 0, 10_000) == [*range(1, 9), *range(11, 19)]


def test_turns_of_one_or_two_blocks_stay_whole():
    assert inside([(0, 64), (64, 192), (192, 330)], 0, 10_000) == []


def test_sinks_and_what_is_still_hot_stay():
    assert inside([(0, 640)], 200, 450) == [4, 5, 6]


@given(
    bounds=st.lists(st.integers(0, 3000), min_size=2, max_size=12, unique=True),
    start=st.integers(0, 500),
    stop=st.integers(0, 3000),
)
def test_only_whole_blocks_strictly_inside_a_turn(bounds, start, stop):
    bounds = sorted(bounds)
    turns = list(pairwise(bounds))
    found = inside(turns, start, stop)
    assert found == sorted(set(found))
    for place in found:
        first, last = place * BLOCK_TOKENS, (place + 1) * BLOCK_TOKENS
        assert start <= first
        assert last <= stop
        assert any(
            low + BLOCK_TOKENS <= first and last + BLOCK_TOKENS <= high for low, high in turns
        )
