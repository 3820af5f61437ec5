"""Which blocks of old turns may be evicted: all but the first and the newest of each turn.

A turn's question and how its answer ended stay, so that the model knows what it was about. The idea
of sinks and a window is StreamingLLM's (Xiao et al. 2023), for a whole text; here each turn has its
own. Knows no tensor.
"""

from collections.abc import Iterable

from kvchat.kvcache.spans import whole_blocks

KEPT_FIRST, KEPT_NEWEST = 1, 1


def inside(turns: Iterable[tuple[int, int]], start: int, stop: int) -> list[int]:
    """Places of the blocks in the middle of each turn, the oldest turn's first. `turns`: their
    tokens [start, stop); only blocks of which every token lies in [start, stop) are touched.
    """
    found: list[int] = []
    for turn in sorted(turns):
        blocks = whole_blocks([turn])
        middle = blocks[KEPT_FIRST : len(blocks) - KEPT_NEWEST]
        known = set(whole_blocks([turn], start, stop))
        found += [one for one in middle if one in known]
    return found
