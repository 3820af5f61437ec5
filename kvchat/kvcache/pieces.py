"""What is on its way to the disk: texts that are to be kept, and pieces of them, copied to the host
and not yet written.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.kvcache.blocks import Block, Geometry, Slab, read_block, shape_of, write_block
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy's bytes on the host, and what is to be stored of it."""

    place: int
    group: int
    pair: FormatPair
    over: FormatPair
    wanted: FormatPair
    data: Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """What becomes one file of a chat, if that has lost no turn since (`edition`)."""

    chat: str
    edition: int
    parent: bytes
    depth: int
    keys: tuple[bytes, ...]
    ids: tuple[tuple[int, ...], ...]
    copies: tuple[Copied, ...]
    tail_tokens: int = 0


@dataclass(slots=True)
class NotedText:
    """A text to be kept: `next`: the first of its blocks that was not looked at yet."""

    chat: str
    edition: int
    keys: tuple[bytes, ...]
    token_ids: tuple[int, ...]
    sink_tokens: int
    tail: Piece | None
    next: int = 0

    def piece_ids(self, i: int) -> tuple[int, ...]:
        return self.token_ids[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]


def _on_host(pair: FormatPair, data: Tensor) -> Block:
    slab = Slab(0, data.nbytes, data.device)
    slab.memory = data
    return Block(0, pair, slab, 0, data.nbytes)


@torch.inference_mode()
def in_formats(geometry: Geometry, data: Tensor, pair: FormatPair, wanted: FormatPair) -> Tensor:
    """A block's bytes, stored in other formats: [n] uint8."""
    made = torch.empty(shape_of(geometry, wanted).block_bytes, dtype=torch.uint8)
    keys, values = read_block(geometry, _on_host(pair, data))
    write_block(geometry, _on_host(wanted, made), keys, values)
    return made
