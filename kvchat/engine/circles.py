"""Whether a reply goes round in circles: the same run of tokens, over and over, to its end.

Small models do that, most of all with the likeliest token each time, and would until the reply's
room is used up. A list, a table or a lookup table of zeros repeats itself too, so a circle must be
long: `LEAST_TOKENS` of it, four rounds at least, and for very short runs twice as many tokens. What
differs in a single token each round, as numbered lines do, is no circle. Changes no token: a reply
is as it would be, until it ends. Takes ids; knows no text.
"""

LEAST_ROUNDS = 4
LEAST_TOKENS = 256  # of a circle, before it counts as one
SHORT_RUN = 8  # runs below this are rows of zeros, of empty cells or of dots
LONGEST_RUN = 256


def needed_tokens(run: int) -> int:
    """How many tokens a run of so many has to fill, over and over, to be a circle."""
    return max(LEAST_TOKENS * (2 if run < SHORT_RUN else 1), LEAST_ROUNDS * run)


class Circles:
    """Follows one reply, a token at a time."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        # by length of a run: how many of the newest ids equal the one that stands a run before
        self._same: dict[int, int] = {}

    def closed(self, token: int) -> bool:
        """Adds the token; True where the reply goes round in circles by now."""
        self._add(token)
        # what fills them with a run of two fills them with one of eight, too: the shortest counts
        runs = [run for run in self._same if self._fills(run, LEAST_TOKENS)]
        return bool(runs) and self._fills(min(runs), needed_tokens(min(runs)))

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
