"""Which sealed blocks and idle hot windows hold a given prefix of token ids.

A hit compares the ids as well as the key, so a collision of hashes can never hand out another
text's KV. Knows no device memory: what is found here is referenced and copied by the pool and the
sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvchat.kvcache.blocks import FP, Block, Geometry, HotWindow, chain
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of


@dataclass(slots=True, eq=False)
class IdleTail:
    """The hot window that an idle sequence left behind: its newest tokens, as computed.

    Begins at `start` (a multiple of 64) after the block named `parent`; one hot window for each
    group. `over`: the lowest formats of what came before it.
    """

    parent: bytes
    start: int
    token_ids: tuple[int, ...]
    hot: tuple[HotWindow, ...]
    over: FormatPair = FP
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class Holed:
    """A text that went on after blocks were evicted from it. `keys` and `token_ids`: of its blocks
    of 64; `places`: of those that it does without; `parent`: what its hot window came after.
    """

    keys: tuple[bytes, ...]
    token_ids: tuple[int, ...]
    places: frozenset[int]
    parent: bytes


@dataclass(frozen=True, slots=True)
class Match:
    """The longest reusable prefix: whole blocks, then `tail_tokens` more out of a block or an idle
    hot window.

    blocks[g][i]: the i-th block of group g, None where a sliding layer's window has left it.
    `lost_tokens`: how much longer it would be if those layers still held what came before.
    `places`: of blocks that were evicted, None in all groups without a window; `parent`: what comes
    next is named after it.
    """

    keys: tuple[bytes, ...]
    blocks: tuple[tuple[Block | None, ...], ...]
    tail: IdleTail | tuple[Block, ...] | None
    tail_tokens: int
    lost_tokens: int = 0
    places: frozenset[int] = frozenset()
    parent: bytes = b""

    @property
    def num_tokens(self) -> int:
        return len(self.keys) * BLOCK_TOKENS + self.tail_tokens


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids are the same."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def _piece(walked: Holed, place: int) -> tuple[int, ...]:
    return walked.token_ids[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]


def _is_better(one: Block, other: Block) -> bool:
    if one.tier != other.tier:
        return one.tier == "device"
    return one.pair.at_least(other.pair) and one.over.at_least(other.over)


@dataclass(slots=True)
class PrefixIndex:
    geometries: tuple[Geometry, ...]
    root: bytes
    blocks: dict[bytes, dict[int, list[Block]]] = field(default_factory=dict)
    children: dict[bytes, set[bytes]] = field(default_factory=dict)
    tails: list[IdleTail] = field(default_factory=list)
    holed: list[Holed] = field(default_factory=list)

    def find(
        self, key: bytes, group: int, token_ids: tuple[int, ...], floor: FormatPair
    ) -> Block | None:
        """The best copy of that name and those ids, stored in `floor` or better and computed over
        no less: one on the device before one on the host, then the better format.
        """
        copies = [
            block
            for block in self.blocks.get(key, {}).get(group, ())
            if block.token_ids == token_ids and lower_of(block.pair, block.over).at_least(floor)
        ]
        best: Block | None = None
        for block in copies:
            if best is None or _is_better(block, best):
                best = block
        return best

    def add(self, block: Block) -> None:
        assert block.key is not None
        self.blocks.setdefault(block.key, {}).setdefault(block.group, []).append(block)
        self.children.setdefault(block.parent, set()).add(block.key)

    def remove(self, block: Block) -> None:
        assert block.key is not None
        groups = self.blocks[block.key]
        groups[block.group].remove(block)
        if not groups[block.group]:
            del groups[block.group]
        if not groups:
            del self.blocks[block.key]
            siblings = self.children[block.parent]
            siblings.discard(block.key)
            if not siblings:
                del self.children[block.parent]

    def all(self) -> Iterator[Block]:
        for groups in self.blocks.values():
            for copies in groups.values():
                yield from copies

    def match(
        self,
        token_ids: Sequence[int],
        floor: FormatPair = FP,
        hot_tokens: int = 0,
        *,
        whole: bool = False,
    ) -> Match:
        """The longest prefix of all but the last id that can be reused: the last one is always
        computed. A text that does without evicted blocks serves where it reaches further, unless
        `whole` is asked for.

        `floor`: the lowest formats that it may have been stored in. `hot_tokens`: so many of the
        newest must be as computed (less one block); where no idle hot window has them they are left
        to be read again.
        """
        usable = token_ids[:-1]
        best = self._longest(usable, self._walk(usable, floor), floor, hot_tokens)
        for holed in () if whole else self.holed:
            chain_of = self._walk_over(holed, usable, floor)
            if len(chain_of.keys) > min(holed.places):
                match = self._longest(usable, chain_of, floor, hot_tokens)
                if match.num_tokens > best.num_tokens:
                    best = match
        return best

    def _longest(
        self, usable: Sequence[int], walked: Holed, floor: FormatPair, hot_tokens: int
    ) -> Match:
        """The longest reusable prefix along those blocks."""
        keys = walked.keys
        most_without = self.most_without_tail(keys, usable, floor, hot_tokens, walked.parent)
        best: Match | None = None
        for depth in range(len(keys), -1, -1):
            if best is not None and depth < most_without:
                break
            found = self._blocks_at(walked, depth, floor)
            if found is None:
                continue
            parent, rest = self._parent_at(walked, depth), usable[depth * BLOCK_TOKENS :]
            tail, tail_tokens = self._tail(parent, rest, floor, with_blocks=not hot_tokens)
            if depth and tail_tokens < hot_tokens - BLOCK_TOKENS:
                if depth > most_without:
                    continue
                tail, tail_tokens = None, 0
            if depth - 1 in walked.places and not tail_tokens:
                continue  # nothing that was computed over the hole is left: it is read instead
            places = frozenset(one for one in walked.places if one < depth)
            match = Match(keys[:depth], found, tail, tail_tokens, 0, places, parent)
            if best is None or match.num_tokens > best.num_tokens:
                best = match
        assert best is not None, "depth 0 always matches"
        full = len(self._groups_without_window())
        if not full or full == len(self.geometries):
            return best  # nobody tells how far it once reached, or nothing left a window
        lost = most_without * BLOCK_TOKENS - best.num_tokens
        return replace(best, lost_tokens=max(0, lost))

    def _parent_at(self, walked: Holed, depth: int) -> bytes:
        """After which name the tokens come that follow so many blocks."""
        if depth == len(walked.keys):
            return walked.parent
        return walked.keys[depth - 1] if depth else self.root

    def _groups_without_window(self) -> list[int]:
        return [g for g, geometry in enumerate(self.geometries) if geometry.window is None]

    def most_without_tail(
        self,
        keys: Sequence[bytes],
        usable: Sequence[int],
        floor: FormatPair,
        hot_tokens: int,
        parent: bytes | None = None,
    ) -> int:
        """Of these blocks as many as are reused where no idle hot window follows: R tokens before
        the end of what is known are read again. `parent`: what the hot window came after, if not
        the last of them.
        """
        known = len(keys) * BLOCK_TOKENS
        if hot_tokens:
            parent = parent or (keys[-1] if keys else self.root)
            known += self._tail(parent, usable[known:], floor, with_blocks=False)[1]
        return min(len(keys), max(0, known - hot_tokens) // BLOCK_TOKENS)

    def _walk(self, token_ids: Sequence[int], floor: FormatPair) -> Holed:
        """The leading blocks that all groups without a window still hold."""
        keys: list[bytes] = []
        full = self._groups_without_window()
        for key, piece in chain(self.root, token_ids):
            if not all(self.find(key, g, piece, floor) for g in full):
                break
            keys.append(key)
        ids = tuple(token_ids[: len(keys) * BLOCK_TOKENS])
        return Holed(tuple(keys), ids, frozenset(), keys[-1] if keys else self.root)

    def _walk_over(self, holed: Holed, token_ids: Sequence[int], floor: FormatPair) -> Holed:
        """As far as the ids are the text's and its blocks are still held, but for the evicted."""
        num_blocks = num_common(token_ids, holed.token_ids) // BLOCK_TOKENS
        full = self._groups_without_window()
        depth = 0
        while depth < num_blocks and (
            depth in holed.places
            or all(self.find(holed.keys[depth], g, _piece(holed, depth), floor) for g in full)
        ):
            depth += 1
        if depth == len(holed.keys):
            return holed
        keys = holed.keys[:depth]
        ids = holed.token_ids[: depth * BLOCK_TOKENS]
        return Holed(keys, ids, holed.places, keys[-1] if keys else self.root)

    def _blocks_at(
        self, walked: Holed, depth: int, floor: FormatPair
    ) -> tuple[tuple[Block | None, ...], ...] | None:
        """The blocks to continue from after `depth` blocks, or None if a window's blocks are
        gone.
        """
        wanted = [
            range(geometry.first_visible(depth * BLOCK_TOKENS) // BLOCK_TOKENS, depth)
            for geometry in self.geometries
        ]
        windows = [g for g, one in enumerate(self.geometries) if one.window is not None]
        # Windows first: they are short, and where they are gone this is asked at every depth.
        if not all(self._of(walked, i, g, floor) for g in windows for i in wanted[g]):
            return None
        found: list[tuple[Block | None, ...]] = []
        for group, seen in enumerate(wanted):
            gone = frozenset[int]() if group in windows else walked.places
            held = (
                self._of(walked, i, group, floor) if i in seen and i not in gone else None
                for i in range(depth)
            )
            found.append(tuple(held))
        return tuple(found)

    def _of(self, walked: Holed, place: int, group: int, floor: FormatPair) -> Block | None:
        return self.find(walked.keys[place], group, _piece(walked, place), floor)

    def _tail(
        self, parent: bytes, rest: Sequence[int], floor: FormatPair, *, with_blocks: bool
    ) -> tuple[IdleTail | tuple[Block, ...] | None, int]:
        """The best continuation after a block: an idle hot window, or the beginning of a sealed
        block that is as computed.
        """
        best: IdleTail | tuple[Block, ...] | None = None
        most = 0
        for tail in self.tails:
            if tail.parent == parent and tail.over.at_least(floor):
                common = num_common(rest, tail.token_ids)
                if common > most:
                    best, most = tail, common
        for key in self.children.get(parent, ()) if with_blocks else ():
            blocks = self._as_computed(key, floor)
            if blocks is not None:
                common = num_common(rest, blocks[0].token_ids)
                if common > most:
                    best, most = blocks, common
        return best, most

    def _as_computed(self, key: bytes, floor: FormatPair) -> tuple[Block, ...] | None:
        """That name's blocks of all groups that hold values as computed, or None."""
        found = []
        for group in range(len(self.geometries)):
            copies = self.blocks[key].get(group, ())
            plain = [b for b in copies if b.pair == FP and b.over.at_least(floor)]
            if not plain:
                return None
            found.append(min(plain, key=lambda one: one.tier != "device"))
        return tuple(found)
