"""Which of the blocks that may be evicted go first: those that were attended to least.

Heavy hitters stay (H2O, Zhang et al. 2023). Knows no tensor.
"""

from collections.abc import Iterable, Mapping


def lightest_first(places: Iterable[int], mass: Mapping[int, float]) -> list[int]:
    """By attention mass; the older first where it is the same. What nobody looked at counts as
    unattended.
    """
    return sorted(places, key=lambda place: (mass.get(place, 0.0), place))
