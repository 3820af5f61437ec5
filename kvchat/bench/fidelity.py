"""`bench fidelity`: what each pair of formats costs this model in answers, against the same model
with its KV as computed.

All readers go through the same text side by side, 64 tokens at a time, so that a block is sealed
and read back while most of the text is still to come. Of the last tokens:

    kl      mean over positions of sum p (ln p - ln q): p as computed, q in the formats; nats
    same    how often the likeliest next token is the same
    ppl     exp of the mean surprise at what really comes next, and its change

Needles are sentences with a number, hidden at several depths of a second reading and asked for at
its end: found where every token of the number is the likeliest. A model that finds less than half
of them as computed is too weak to be asked. The verdict is kept in models/verdicts.py.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kvchat.bench.readers import CHUNK_TOKENS, PEERS, Reader, make_reader, parse_pair
from kvchat.bench.room import refuse_too_large
from kvchat.bench.text import Sample, encode
from kvchat.engine.engine import Engine
from kvchat.errors import ModelError, SettingsError
from kvchat.kvcache.pool import Storing
from kvchat.models.verdicts import Verdict
from kvchat.wording import Language, say

AS_COMPUTED = "fp/fp"
DEFAULT_PAIRS = ("int8", "int6/int4", "int4")
ALL_PAIRS = (
    "int8",
    "int6",
    "fp8",
    "int8/int4",
    "int6/int4",
    "int5/int4",
    "int4",
    "quanto4",
    "int2",
    *PEERS,
)

# How deep in the text each lies. All are out of the hot window before they are asked for.
_NEEDLES = (
    (0.05, "Paris", "48213"),
    (0.25, "London", "70956"),
    (0.45, "Cairo", "31874"),
    (0.65, "Lima", "92540"),
)
_LOGITS_COPIES = 4  # of a chunk's logits: of two readers, and their logarithms


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens that are read, how many of the last are scored, and tokens around the needles."""

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


LENGTHS = Lengths()
_LEAST_SCORED = 2 * CHUNK_TOKENS


def _whole(num_tokens: float) -> int:
    return int(num_tokens) // CHUNK_TOKENS * CHUNK_TOKENS


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
        return math.exp(self.surprise / self.num_scored)


def chosen_pairs(text: str | None) -> tuple[str, ...]:
    """From `int8,int6/int4`; `all`, or None for a sensible few. Raises SettingsError."""
    if text is None:
        return _named(DEFAULT_PAIRS)
    return _named(ALL_PAIRS if text == "all" else [one.strip() for one in text.split(",")])


def _named(names: Sequence[str]) -> tuple[str, ...]:
    """Each once and in one way: `int8` as `int8/int8`."""
    return tuple(dict.fromkeys(one if one in PEERS else str(parse_pair(one)) for one in names))


def measured(
    engine: Engine, sample: Sample, names: Sequence[str], lengths: Lengths = LENGTHS
) -> Iterator[dict[str, Any]]:
    """One row a name, after the row of the uncompressed run. Raises KVChatError."""
    loaded = engine.loaded
    if not engine.pool.geometries:
        raise ModelError("bench_no_blocks", model=loaded.name)
    ids = sample.ids(loaded.tokenizer)
    lengths = lengths.within(len(ids), loaded.spec.max_positions)
    if lengths.num_scored < _LEAST_SCORED:
        raise SettingsError("bench_text_short", name=sample.name, tokens=len(ids))
    names = _named((AS_COMPUTED, *names))
    refuse_too_large(engine, _needed_bytes(engine, names, lengths.num_tokens))
    scores = _read(engine, names, ids, lengths)
    _find_needles(engine, names, scores, ids[: lengths.num_around_needles], sample.lang)
    computed = scores[AS_COMPUTED]
    asked = len(computed.needles) if 2 * sum(computed.needles) >= len(computed.needles) else 0
    for name in names:
        row = _row(scores[name], computed, asked)
        about = {"name": "fidelity", "model": loaded.name, "text": sample.name, "pair": name}
        yield about | {"tokens": lengths.num_tokens} | row


def _needed_bytes(engine: Engine, names: Sequence[str], num_tokens: int) -> int:
    """All readers are held at once, beside a chunk's logits."""
    loaded, kv = engine.loaded, 0
    for name in names:
        pair = parse_pair(AS_COMPUTED if name in PEERS else name)
        costs = replace(engine.costs, storing=Storing(pair, pair))
        kv += costs.blocks_bytes(num_tokens, CHUNK_TOKENS) + costs.hot_bytes(CHUNK_TOKENS)
    logits = _LOGITS_COPIES * 4 * CHUNK_TOKENS * loaded.spec.vocab_size
    activations = engine.costs.activations(CHUNK_TOKENS, num_tokens)
    return loaded.weight_bytes + kv + logits + activations


def _read(
    engine: Engine, names: Sequence[str], ids: Sequence[int], lengths: Lengths
) -> dict[str, Score]:
    readers = {name: make_reader(engine, name) for name in names}
    scores = {name: Score(reader.bits) for name, reader in readers.items()}
    following = torch.tensor(ids[1 : lengths.num_tokens + 1], device=engine.loaded.device)
    for start in range(0, lengths.num_tokens, CHUNK_TOKENS):
        stop = start + CHUNK_TOKENS
        scored = start >= lengths.num_tokens - lengths.num_scored
        log_p: Tensor | None = None
        for name, reader in readers.items():
            log_q = _logarithms(reader, ids[start:stop], CHUNK_TOKENS if scored else 1)
            log_p = log_q if log_p is None else log_p
            if scored:
                scores[name].add(log_q, log_p, following[start:stop])
    return scores


def _logarithms(reader: Reader, ids: Sequence[int], num_last: int) -> Tensor:
    return reader.read(ids, num_last).float().log_softmax(-1)


def _find_needles(
    engine: Engine,
    names: Sequence[str],
    scores: dict[str, Score],
    around: list[int],
    lang: Language,
) -> None:
    """Notes for each reader which of the needles it found."""
    tokenizer = engine.loaded.tokenizer
    hidden, before = [], 0
    for depth, place, number in _NEEDLES:
        at = int(depth * len(around))
        sentence = "\n" + say("bench.needle", lang, place=place, number=number) + "\n"
        hidden += around[before:at] + encode(tokenizer, sentence)
        before = at
    hidden += around[before:]
    for name in names:
        reader = make_reader(engine, name)
        for start in range(0, len(hidden), CHUNK_TOKENS):
            reader.read(hidden[start : start + CHUNK_TOKENS], 1)
        for _, place, number in _NEEDLES:
            question = "\n\n" + say("bench.needle_asked", lang, place=place)
            asked = encode(tokenizer, question)
            answer = encode(tokenizer, f"{question} {number}")[len(asked) :]
            likeliest = reader.read(asked + answer, len(answer) + 1)[:-1].argmax(-1)
            scores[name].needles.append(likeliest.tolist() == answer)


def _row(score: Score, computed: Score, needles_asked: int) -> dict[str, Any]:
    change = score.perplexity / computed.perplexity - 1
    return {
        "bits": round(score.bits, 3),
        "scored": score.num_scored,
        "kl": round(score.kl / score.num_scored, 6),
        "same_percent": round(100 * score.num_same / score.num_scored, 2),
        "ppl": round(score.perplexity, 4),
        "ppl_percent": round(100 * change, 2),
        "needles": sum(score.needles) if needles_asked else None,
        "needles_asked": needles_asked,
    }


def verdict_of(row: dict[str, Any]) -> Verdict | None:
    """What is to be kept of a row; nothing of the uncompressed run and of other programs' ways."""
    if row["pair"] in (AS_COMPUTED, *PEERS):
        return None
    return Verdict(
        pair=row["pair"],
        kl=row["kl"],
        same_percent=row["same_percent"],
        perplexity_percent=row["ppl_percent"],
        num_scored=row["scored"],
        text=row["text"],
        measured_at_s=time.time(),
    )
