"""What formats of the KV cache cost a model in answers: readers go through one text side by side,
64 tokens at a time, so that a block is sealed and read back while most of the text is to come.

Of the last tokens, for each reader against the first, which keeps its KV as computed:

    kl      mean over positions of sum p (ln p - ln q): p as computed, q in the formats; nats
    same    how often the likeliest next token is the same
    ppl     exp of the mean surprise at what really comes next, and its change

Each reader's KV lies in a pool of its own: nothing is shared with another reader, nor with texts of
the engine. `bench fidelity` and the engine's own measuring (engine/proving.py) stand on this. Knows
no clock but for the time of a verdict, and not where that is kept.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kvchat.engine.engine import Engine
from kvchat.engine.local import LocalModel
from kvchat.kvcache.blocks import shape_of
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from kvchat.memory.verdicts import Verdict
from kvchat.models.catalog import catalog
from kvchat.wording import Language, table

CHUNK_TOKENS = BLOCK_TOKENS
AS_COMPUTED = "fp/fp"
LEAST_SCORED = 2 * CHUNK_TOKENS  # fewer say nothing
_MOST_SURPRISE = 700.0  # nats; more than that exp cannot tell
_LOGITS_COPIES = 5  # of a chunk in fp32: ln p, ln q, p, their difference, and its product with p


@dataclass(frozen=True, slots=True)
class Sample:
    """`name`: what the verdict says it was measured on; `lang`: that of questions about it."""

    name: str
    text: str
    lang: Language

    def ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return encode(tokenizer, self.text, begins=True)


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, begins: bool = False) -> list[int]:
    """`begins`: with what the tokenizer puts before a text."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=begins, verbose=False)
    return found


def shipped_sample(model: str, lang: Language) -> Sample:
    """The sentences that kvchat itself ships, in a language that the model serves."""
    entry = catalog().get(model)
    lang = lang if entry is None or lang in entry.languages else "en"
    return Sample(f"wording.{lang}", "\n".join(one[lang] for one in table().values()), lang)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens that are read, how many of the last are scored, and tokens around the needles that a
    benchmark hides.
    """

    num_tokens: int = 1792
    num_scored: int = 1024
    num_around_needles: int = 1536

    def within(self, num_ids: int, most: int) -> "Lengths":
        """The same parts of what a text and a model have, in whole chunks."""
        room = min(self.num_tokens, num_ids - 1, most)
        part = room / self.num_tokens
        return Lengths(
            _whole(room),
            _whole(self.num_scored * part),
            _whole(self.num_around_needles * part),
        )


def _whole(num_tokens: float) -> int:
    return int(num_tokens) // CHUNK_TOKENS * CHUNK_TOKENS


class Reader(Protocol):
    """`bits`: of a stored value, its share of the scales included."""

    name: str
    bits: float

    def read(self, token_ids: Sequence[int], num_last: int) -> Tensor:
        """Reads on; the logits after each of the last ids, [num_last, vocab]."""
        ...


class PairReader:
    """The product's own cache, in one pair of formats."""

    def __init__(self, engine: Engine, pair: FormatPair) -> None:
        geometries = engine.pool.geometries
        pool = Pool(geometries, engine.pool.device, b"reader")
        pool.storing = Storing(pair, pair)
        self.name = str(pair)
        self.local = LocalModel(engine.loaded.model, engine.loaded.spec, pool)
        self.text = self.local.open((), CHUNK_TOKENS)
        stored = [shape_of(one, one.served(pair)).block_bytes for one in geometries]
        values = sum(one.block_bytes // one.dtype.itemsize for one in geometries)
        self.bits = 8 * sum(stored) / values

    def read(self, token_ids: Sequence[int], num_last: int) -> Tensor:
        return self.local.score(self.text, token_ids, num_last)

    def close(self) -> None:
        """Gives back all that it holds on the device."""
        self.text.sequence.close(keep_tail=False)
        self.local.pool.drop_idle_slabs(self.local.pool.idle_bytes)


@dataclass(slots=True)
class Score:
    """Sums over the scored positions of one reader; the bits that it keeps of a value."""

    bits: float
    kl: float = 0.0
    num_same: int = 0
    surprise: float = 0.0
    num_scored: int = 0
    needles: list[bool] = field(default_factory=list)

    def add(self, log_q: Tensor, log_p: Tensor, following: Tensor) -> None:
        """log_q, log_p: [n, vocab] of the reader and as computed; following: [n] the next ids."""
        self.kl += float((log_p.exp() * (log_p - log_q)).sum(-1).double().sum())
        self.num_same += int((log_q.argmax(-1) == log_p.argmax(-1)).sum())
        self.surprise -= float(log_q.gather(-1, following.unsqueeze(-1)).double().sum())
        self.num_scored += len(following)

    @property
    def perplexity(self) -> float:
        mean = self.surprise / self.num_scored
        return math.exp(min(mean, _MOST_SURPRISE))

    def verdict(self, pair: str, computed: "Score", text: str) -> Verdict:
        """`computed`: the score of the reader that keeps its KV as computed."""
        change = self.perplexity / computed.perplexity - 1
        return Verdict(
            pair=pair,
            kl=round(self.kl / self.num_scored, 6),
            same_percent=round(100 * self.num_same / self.num_scored, 2),
            perplexity_percent=round(100 * change, 2),
            num_scored=self.num_scored,
            text=text,
            measured_at_s=time.time(),
        )


def reading(
    readers: Mapping[str, Reader],
    scores: Mapping[str, Score],
    ids: Sequence[int],
    lengths: Lengths,
    device: torch.device,
) -> Iterator[None]:
    """Reads a text with all readers, and notes their scores: one chunk of one reader between two
    yields. The first reader is the one that the others are held against.
    """
    following = torch.tensor(ids[1 : lengths.num_tokens + 1], device=device)
    for start in range(0, lengths.num_tokens, CHUNK_TOKENS):
        stop = start + CHUNK_TOKENS
        scored = start >= lengths.num_tokens - lengths.num_scored
        log_p: Tensor | None = None
        for name, reader in readers.items():
            log_q = _logarithms(reader, ids[start:stop], CHUNK_TOKENS if scored else 1)
            log_p = log_q if log_p is None else log_p
            if scored:
                scores[name].add(log_q, log_p, following[start:stop])
            del log_q
            yield


def _logarithms(reader: Reader, ids: Sequence[int], num_last: int) -> Tensor:
    return reader.read(ids, num_last).float().log_softmax(-1)


def reading_bytes(engine: Engine, pairs: Iterable[FormatPair], num_tokens: int) -> int:
    """What it takes on the device beside the weights: all readers are held at once, beside a
    chunk's logits.

        sum over pairs: blocks + 2 hot windows (the old one and the one that takes its place)
                        + a block that a slab may hold free + the library's own layers
        + a few copies of the logits + activations
    """
    loaded, kv = engine.loaded, 0
    for pair in pairs:
        costs = replace(engine.costs, storing=Storing(pair, pair))
        kv += costs.blocks_bytes(num_tokens, CHUNK_TOKENS) + 2 * costs.hot_bytes(
            num_tokens, CHUNK_TOKENS
        )
        kv += costs.blocks_bytes(costs.storing.hot_tokens + CHUNK_TOKENS, CHUNK_TOKENS)
        kv += costs.library_bytes(num_tokens)
    logits = _LOGITS_COPIES * 4 * CHUNK_TOKENS * loaded.spec.vocab_size
    return kv + logits + engine.costs.activations(CHUNK_TOKENS, num_tokens)
