"""A reply that goes round in circles is ended; one that only repeats itself is not."""

import re

import pytest

from kvchat.engine.circles import LONGEST_RUN, SHORT_RUN, Circles, GoingRound, needed_tokens


def ended_at(ids: list[int]) -> int | None:
    """How many tokens were written when the reply was ended."""
    circles = Circles()
    return next((n for n, token in enumerate(ids, 1) if circles.closed(token)), None)


@pytest.mark.parametrize("run", [1, SHORT_RUN - 1, SHORT_RUN, 37, 64, 100, LONGEST_RUN])
def test_a_circle_ends_the_reply_as_soon_as_it_is_long_enough(run: int) -> None:
    before = list(range(1000, 1050))
    assert ended_at(before + list(range(run)) * 700) == len(before) + needed_tokens(run)
    assert needed_tokens(run) >= 4 * run


def test_a_refrain_a_table_and_a_lookup_table_are_no_circles() -> None:
    refrain = [number for verse in range(40) for number in (*range(40), 500 + verse)]
    rows = [number for row in range(200) for number in (1, 2, 3, 1000 + row, 2, 3, 4)]
    zeros = [7, 8] * 200
    three_times = list(range(300, 500)) * 3
    assert [ended_at(one) for one in (refrain, rows, zeros, three_times)] == [None] * 4


def test_what_was_broken_off_counts_anew() -> None:
    run = list(range(20))
    almost = (run * 20)[: needed_tokens(20) - 1]
    assert ended_at([*almost, 99, *almost]) is None
    assert ended_at([*almost, 99, *almost, almost[len(almost) % 20]]) is not None


# --- lists ------------------------------------------------------------------------------------

ITEM_TOKENS = 13  # with the end of its line
SAME = " The sea is said to be one hundred million years old."


def ended_in(text: str) -> str:
    """What of it was written when the reply was ended. Digits are tokens of their own, as are
    words with the blank before them.
    """
    pieces = re.findall(r"\n|\d| ?[^\W\d]+| |[^\w\s]", text)
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    by_id = {number: piece for piece, number in ids.items()}
    going, written = GoingRound(by_id.__getitem__), ""
    for piece in pieces:
        written += piece
        if going.closed(ids[piece]):
            break
    return written


@pytest.mark.parametrize("mark", [".", ")"])
def test_a_list_of_one_item_with_other_numbers_goes_round(mark: str) -> None:
    items = [f"{number}{mark}{SAME}" for number in range(1, 200)]
    written = ended_in("\n".join(items))
    assert len(written.splitlines()) == -(-needed_tokens(ITEM_TOKENS) // ITEM_TOKENS)


def test_what_a_list_says_with_its_numbers_does_not() -> None:
    counted = [f"{number}." for number in range(1, 400)]
    times = [f"{number}. {number} times nine makes {9 * number}." for number in range(1, 200)]
    years = [f"{1000 + number} was a year in which the sea rose a little." for number in range(200)]
    code = [f"    case {number}:\n        return value{number};" for number in range(200)]
    bits = [" ".join(str(number >> place & 1) for place in range(8)) for number in range(256)]
    for lines in (counted, times, years, code, bits):
        text = "\n".join(lines)
        assert ended_in(text) == text
