"""Whether a reply goes round in circles: the same run of tokens, over and over, to its end.

Small models do that, most of all with the likeliest token each time, and would until the reply's
room is used up. A list, a table or a lookup table of zeros repeats itself too, so a circle must be
long: `LEAST_TOKENS` of it, four rounds at least, and for very short runs twice as many tokens. What
differs in a single token each round is no circle: rows of a table and lines of code do. Only the
number that a list gives its item tells nothing, and does not count. Changes no token: a reply is as
it would be, until it ends.
"""

from collections.abc import Callable
from functools import cache

LEAST_ROUNDS = 4
LEAST_TOKENS = 256  # of a circle, before it counts as one
SHORT_RUN = 8  # runs below this are rows of zeros, of empty cells or of dots
LONGEST_RUN = 256
_MARKS = (".", ")")  # after the number of a list's item


def needed_tokens(run: int) -> int:
    """How many tokens a run of so many has to fill, over and over, to be a circle."""
    return max(LEAST_TOKENS * (2 if run < SHORT_RUN else 1), LEAST_ROUNDS * run)


class GoingRound:
    """Follows one reply, a token at a time. `text_of` a token's id."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._whole, self._items = Circles(), Circles()
        self._without_numbers = WithoutNumbers(text_of)

    def closed(self, token: int) -> bool:
        """Adds the token; True where the reply goes round in circles by now, or its list does."""
        items = [self._items.closed(one, SHORT_RUN) for one in self._without_numbers.known(token)]
        return self._whole.closed(token) or any(items)


class WithoutNumbers:
    """The tokens of a reply without those that begin a line as the number of a list's item."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = cache(text_of)
        self._begins_line = True
        self._digits: list[int] = []  # a number, if one of the marks follows

    def known(self, token: int) -> list[int]:
        """Adds the token; returns those that are known to count by now."""
        text = self._text_of(token)
        bare, (_, line_end, after) = text.strip(), text.rpartition("\n")
        if self._begins_line and bare.isdecimal():
            self._digits.append(token)
            return []
        found, self._digits = self._digits, []
        if found and not line_end and bare in _MARKS:
            self._begins_line = False
            return []
        is_blank = not after.strip()
        self._begins_line = is_blank if line_end else is_blank and self._begins_line and not found
        return [*found, token]


class Circles:
    """The same run of ids, over and over."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        # by length of a run: how many of the newest ids equal the one that stands a run before
        self._same: dict[int, int] = {}

    def closed(self, token: int, least_run: int = 1) -> bool:
        """Adds the token; True where the ids go round by now, in runs of `least_run` or more."""
        self._add(token)
        # what fills them with a run of two fills them with one of eight, too: the shortest counts
        runs = [run for run in self._same if self._fills(run, LEAST_TOKENS)]
        run = min(runs, default=0)
        return run >= least_run and self._fills(run, needed_tokens(run))

    def _add(self, token: int) -> None:
        self._ids.append(token)
        place = len(self._ids) - 1
        for run in range(1, min(LONGEST_RUN, place) + 1):
            if self._ids[place - run] == token:
                self._same[run] = self._same.get(run, 0) + 1
            else:
                self._same.pop(run, None)

    def _fills(self, run: int, num_tokens: int) -> bool:
        """Whether the newest so many tokens are that run, over and over."""
        return self._same.get(run, 0) + run >= num_tokens
