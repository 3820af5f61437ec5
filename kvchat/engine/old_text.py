"""Old text of the open sequence: which blocks may be stored in less, moved or evicted; doing it.

Old is what the request says (turns before the one in flight and documents, without what is
pinned), in whole blocks, behind the sinks and before the newest R tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvchat.device.copying import host_seconds_per_step
from kvchat.engine.events import Request
from kvchat.kvcache.blocks import FP, Block, Tier, shape_of
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.sequence import Sequence as Text
from kvchat.kvcache.spans import PageSpan, Span, whole_blocks
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of
from kvchat.planner.ledger import pages, stored
from kvchat.planner.measures import BringBack, Evict, Offload, Raise, Requantize, WayBack
from kvchat.planner.plan import Offer, Snapshot
from kvchat.policy.heavy_hitter import lightest_first
from kvchat.policy.window import inside

Placed = tuple[int, Block]
Kept = tuple[str, Tier]


@dataclass(frozen=True, slots=True)
class Relieved:
    """What was done: bytes freed on the device (below 0: taken there), tokens concerned, names of
    their turns, their documents with the pages, how they were stored before and after, and how many
    of them the model does not see any more.
    """

    num_bytes: int
    num_tokens: int
    turns: tuple[str, ...]
    documents: tuple[dict[str, Any], ...] = ()
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    lost_tokens: int = 0


class OldText:
    """`mass`: what attention blocks got, by place, where those that got least are to go first."""

    def __init__(
        self, pool: Pool, sequence: Text, request: Request, mass: Mapping[int, float] | None = None
    ) -> None:
        self._pool, self._sequence, self._request = pool, sequence, request
        self._mass = mass

    # --- what could be done -----------------------------------------------------------------------

    def offers(self, lower: Sequence[FormatPair], now: Snapshot) -> tuple[Offer, ...]:
        """The most that each measure would free now."""
        in_less = [Requantize(self._most(pair), pair) for pair in lower]
        held = sum(block.nbytes for _, block in self._blocks())
        moved = min(held, now.host_free_bytes)
        offload = Offload(moved, host_seconds_per_step(moved, now.host_bytes_per_s))
        return (*in_less, offload, Evict(sum(one.nbytes for _, one in self._middle())))

    def on_host_bytes(self) -> int:
        return sum(block.nbytes for _, block in self._blocks(tier="host"))

    def raise_bytes(self) -> int:
        """What it would take more to store all of it as good as it is held anywhere."""
        return sum(max(0, self._rise(block)) for _, block in self._blocks())

    def _blocks(self, pair: FormatPair = FP, tier: Tier = "device") -> Iterator[Placed]:
        """Places and blocks, the oldest first, but for the newest that stay as computed."""
        sequence = self._sequence
        recent = sequence.storing.recent_tokens(pair)
        stop = min(sequence.num_cached - recent, len(sequence.keys) * BLOCK_TOKENS)
        for i in whole_blocks(self._request.old, sequence.storing.sink_tokens, stop):
            for table in sequence.tables:
                block = table[i]
                if block is not None and block.tier == tier:
                    yield i, block

    def _middle(self) -> Iterator[Placed]:
        """Of old turns what may be evicted, where it takes bytes of the device that nobody else
        needs.
        """
        old, sequence = set(self._request.old), self._sequence
        spans = (one for one in self._request.spans if one.kind == "turn")
        turns = [(one.start, one.stop) for one in spans if (one.start, one.stop) in old]
        places = inside(turns, sequence.storing.sink_tokens, sequence.num_cached)
        if self._mass is not None:
            places = lightest_first(places, self._mass)
        known = dict[int, list[Block]]()
        for i, block in self._blocks():
            without_window = self._pool.geometries[block.group].window is None
            if without_window and block.ref_count == 1:
                known.setdefault(i, []).append(block)
        for i in places:
            yield from ((i, block) for block in known.get(i, ()))

    def _stored(self, block: Block, pair: FormatPair) -> FormatPair:
        return self._pool.geometries[block.group].served(lower_of(block.pair, pair))

    def _gain(self, block: Block, pair: FormatPair) -> int:
        stored = self._stored(block, pair)
        shape = shape_of(self._pool.geometries[block.group], stored)
        return max(0, block.nbytes - shape.block_bytes)

    def _most(self, pair: FormatPair) -> int:
        return sum(self._gain(block, pair) for _, block in self._blocks(pair))

    def _rise(self, block: Block) -> int:
        best = self._pool.best_copy(block).pair
        return shape_of(self._pool.geometries[block.group], best).block_bytes - block.nbytes

    # --- doing it ---------------------------------------------------------------------------------

    def apply(self, measure: Offer | WayBack) -> Relieved:
        """As much as was proposed, and as there is room for where it goes. What becomes empty goes
        back to the device.
        """
        match measure:
            case Requantize():
                done = self._requantize(measure.pair, measure.frees_bytes)
            case Offload():
                chosen = _until(list(self._blocks()), measure.frees_bytes, lambda one: one.nbytes)
                done = self._done(chosen, self._pool.offload)
            case Evict():
                middle = list(self._middle())
                done = self._evict(_until(middle, measure.frees_bytes, lambda one: one.nbytes))
            case BringBack():
                blocks = list(self._blocks(tier="host"))
                chosen = _newest(blocks, -measure.frees_bytes, lambda one: one.nbytes)
                return self._done(chosen, lambda one: -self._pool.bring_back(one))
            case Raise():
                blocks = [(i, one) for i, one in self._blocks() if self._rise(one) > 0]
                chosen = _newest(blocks, -measure.frees_bytes, self._rise)
                return self._done(chosen, lambda one: -self._pool.raise_block(one, FP))
        self._pool.pack()
        return done

    def _requantize(self, pair: FormatPair, wanted_bytes: int) -> Relieved:
        def gain(block: Block) -> int:
            return self._gain(block, pair)

        chosen = _until(
            [(i, one) for i, one in self._blocks(pair) if gain(one)], wanted_bytes, gain
        )
        return self._done(chosen, lambda one: self._pool.requantize(one, self._stored(one, pair)))

    def _evict(self, chosen: list[Placed]) -> Relieved:
        before = [(str(block.pair), block.tier) for _, block in chosen]
        places = {i for i, _ in chosen}
        freed = sum(self._sequence.evict(i) for i in sorted(places))
        num_tokens = len(places) * BLOCK_TOKENS
        turns, documents = self._turns(places), self._documents(places)
        return Relieved(freed, num_tokens, turns, documents, _stored(before), None, num_tokens)

    def _done(self, chosen: list[Placed], do: Callable[[Block], int]) -> Relieved:
        """Where the pool or the host has no more room, what was done stays done."""
        num_bytes, places = 0, set[int]()
        before, after = list[Kept](), list[Kept]()
        try:
            for i, block in chosen:
                was = (str(block.pair), block.tier)
                moved = do(block)
                num_bytes += moved
                if moved:
                    places.add(i)
                    before.append(was)
                    after.append((str(block.pair), block.tier))
        except PoolFull:
            pass
        return Relieved(
            num_bytes,
            len(places) * BLOCK_TOKENS,
            self._turns(places),
            self._documents(places),
            _stored(before),
            _stored(after),
        )

    def _turns(self, places: set[int]) -> tuple[str, ...]:
        spans = (span for span in self._request.spans if span.kind == "turn")
        return tuple(span.name for span in spans if _touched(span, places))

    def _documents(self, places: set[int]) -> tuple[dict[str, Any], ...]:
        """With the pages where those are known; those in turns among them."""
        request, found = self._request, dict[str, list[int] | None]()
        for span in request.spans:
            if span.kind == "document" and _touched(span, places):
                found[span.name] = None
        for page in request.pages:
            if _touched(page, places):
                found[page.document] = [*(found.get(page.document) or ()), page.page]
        return tuple(pages(document, numbers) for document, numbers in found.items())


def pinned_spans(request: Request) -> tuple[Span, ...]:
    """Turns before the one in flight, and documents, of which nothing is old text."""
    earlier = [one for one in request.spans if one.kind in ("turn", "document")][:-1]
    return tuple(
        span
        for span in earlier
        if not any(start < span.stop and span.start < stop for start, stop in request.old)
    )


def _touched(span: Span | PageSpan, places: set[int]) -> bool:
    first, last = span.start // BLOCK_TOKENS, (span.stop - 1) // BLOCK_TOKENS
    return any(i in places for i in range(first, last + 1))


def _stored(kept: list[Kept]) -> dict[str, Any] | None:
    """All of it lies in one tier."""
    return stored((pair for pair, _ in kept), kept[0][1]) if kept else None


def _until(blocks: list[Placed], wanted_bytes: int, size: Callable[[Block], int]) -> list[Placed]:
    """The oldest that are so large together, or a little larger: all groups of a place go at
    once.
    """
    total, found = 0, list[Placed]()
    for i, block in blocks:
        if total >= wanted_bytes and i != found[-1][0]:
            break
        found.append((i, block))
        total += size(block)
    return found


def _newest(blocks: list[Placed], most_bytes: int, size: Callable[[Block], int]) -> list[Placed]:
    """The newest that are so large together at most."""
    total, found = 0, list[Placed]()
    for i, block in reversed(blocks):
        total += size(block)
        if total > most_bytes:
            break
        found.append((i, block))
    return found
