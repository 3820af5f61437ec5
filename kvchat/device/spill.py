"""Whether a card's driver keeps part of its memory in the computer's, told by how steps slow down.

A driver that moves memory out instead of refusing it (Windows: see headroom.py) tells nobody. But a
decode step reads the weights and the text's KV once, so that bytes read a second stay the same from
the shortest text to the longest, on the card (some hundred GB/s); what lies behind the bus comes at
a tenth of that or less. So: the rate falls to a quarter of the best that was seen here, and little
is free.

Values in, values out: no clock and no device.
"""

from dataclasses import dataclass, replace
from statistics import median

# So many steps in a row: a single one may be slow for any reason.
NUM_STEPS = 8
COLLAPSED_TO, RECOVERED_TO = 1 / 4, 1 / 2


@dataclass(frozen=True, slots=True)
class Pace:
    """The rates of the newest decode steps, and the best of their medians."""

    recent: tuple[float, ...] = ()
    best_per_s: float = 0.0
    is_spilling: bool = False

    @property
    def times_slower(self) -> float:
        """How much slower than best the newest steps are; 1 before there are enough of them."""
        if len(self.recent) < NUM_STEPS:
            return 1.0
        return self.best_per_s / median(self.recent)

    def after(self, step_s: float, read_bytes: int, free: int, headroom: int) -> "Pace":
        """Once a step of so many seconds has read so many bytes. It counts as spilling while little
        is free: at most the headroom, and once it does, until there is twice that again, or the
        rate has come half-way back.
        """
        recent = (*self.recent, read_bytes / max(step_s, 1e-9))[-NUM_STEPS:]
        if len(recent) < NUM_STEPS:
            return replace(self, recent=recent)
        rate = median(recent)
        best = max(self.best_per_s, rate)
        if self.is_spilling:
            spilling = rate < RECOVERED_TO * best and free <= 2 * headroom
        else:
            spilling = rate < COLLAPSED_TO * best and free <= headroom
        return Pace(recent, best, spilling)
