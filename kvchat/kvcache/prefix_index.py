"""Which sealed blocks and idle hot windows hold a given prefix of token ids.

A hit compares the ids as well as the key, so a collision of hashes can never hand out another
text's KV. Knows no device memory: what is found here is referenced and copied by the pool and the
sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvchat.kvcache.blocks import Block, Geometry, Storage, chain_key
from kvchat.memory.footprint import BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class IdleTail:
    """The hot window that an idle sequence left behind: its newest tokens, as computed.

    Begins at `start` (a multiple of 64) after the block named `parent`; one storage for each group.
    """

    parent: bytes
    start: int
    token_ids: tuple[int, ...]
    storages: tuple[Storage, ...]
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """The longest reusable prefix: whole blocks, then `tail_tokens` more out of a block or an idle
    hot window.

    blocks[g][i]: the i-th block of group g, None where a sliding layer's window has left it.
    """

    keys: tuple[bytes, ...]
    blocks: tuple[tuple[Block | None, ...], ...]
    tail: IdleTail | tuple[Block, ...] | None
    tail_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.keys) * BLOCK_TOKENS + self.tail_tokens


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


@dataclass(slots=True)
class PrefixIndex:
    geometries: tuple[Geometry, ...]
    root: bytes
    blocks: dict[bytes, dict[int, Block]] = field(default_factory=dict)
    children: dict[bytes, set[bytes]] = field(default_factory=dict)
    tails: list[IdleTail] = field(default_factory=list)

    def find(self, key: bytes, group: int, token_ids: tuple[int, ...]) -> Block | None:
        block = self.blocks.get(key, {}).get(group)
        return block if block is not None and block.token_ids == token_ids else None

    def add(self, block: Block) -> None:
        assert block.key is not None
        self.blocks.setdefault(block.key, {})[block.group] = block
        self.children.setdefault(block.parent, set()).add(block.key)

    def remove(self, block: Block) -> None:
        assert block.key is not None
        groups = self.blocks[block.key]
        del groups[block.group]
        if not groups:
            del self.blocks[block.key]
            siblings = self.children[block.parent]
            siblings.discard(block.key)
            if not siblings:
                del self.children[block.parent]

    def all(self) -> Iterator[Block]:
        for groups in self.blocks.values():
            yield from groups.values()

    def match(self, token_ids: Sequence[int]) -> Match:
        """The longest prefix of all but the last id that can be reused: the last one is always
        computed.
        """
        usable = token_ids[:-1]
        keys, pieces = self._walk(usable)
        for depth in range(len(keys), -1, -1):
            found = self._blocks_at(keys, pieces, depth)
            if found is not None:
                parent = keys[depth - 1] if depth else self.root
                rest = usable[depth * BLOCK_TOKENS :]
                tail, tail_tokens = self._tail(parent, rest)
                return Match(tuple(keys[:depth]), found, tail, tail_tokens)
        raise AssertionError("depth 0 always matches")

    def _walk(self, token_ids: Sequence[int]) -> tuple[list[bytes], list[tuple[int, ...]]]:
        """Names of the leading blocks that all groups without a window still hold, with their
        ids.
        """
        keys: list[bytes] = []
        pieces: list[tuple[int, ...]] = []
        full = [g for g, geometry in enumerate(self.geometries) if geometry.window is None]
        parent = self.root
        for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            piece = tuple(token_ids[start : start + BLOCK_TOKENS])
            parent = chain_key(parent, piece)
            if not all(self.find(parent, g, piece) for g in full):
                break
            keys.append(parent)
            pieces.append(piece)
        return keys, pieces

    def _blocks_at(
        self, keys: list[bytes], pieces: list[tuple[int, ...]], depth: int
    ) -> tuple[tuple[Block | None, ...], ...] | None:
        """The blocks to continue from after `depth` blocks, or None if a window's blocks are
        gone.
        """
        found: list[tuple[Block | None, ...]] = []
        for group, geometry in enumerate(self.geometries):
            first = geometry.first_visible(depth * BLOCK_TOKENS) // BLOCK_TOKENS
            held = [
                self.find(keys[i], group, pieces[i]) if i >= first else None for i in range(depth)
            ]
            if any(block is None for block in held[first:]):
                return None
            found.append(tuple(held))
        return tuple(found)

    def _tail(
        self, parent: bytes, rest: Sequence[int]
    ) -> tuple[IdleTail | tuple[Block, ...] | None, int]:
        """The best continuation after a block: an idle hot window, or the beginning of a sealed
        block.
        """
        best: IdleTail | tuple[Block, ...] | None = None
        most = 0
        for tail in self.tails:
            if tail.parent == parent:
                common = _num_common(rest, tail.token_ids)
                if common > most:
                    best, most = tail, common
        for key in self.children.get(parent, ()):
            groups = self.blocks[key]
            if len(groups) == len(self.geometries):
                blocks = tuple(groups[g] for g in range(len(self.geometries)))
                common = _num_common(rest, blocks[0].token_ids)
                if common > most:
                    best, most = blocks, common
        return best, most
