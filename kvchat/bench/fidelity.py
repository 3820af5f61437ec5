"""`bench fidelity`: what each pair of formats costs this model in answers, against the same model
with its KV as computed.

The readers and what is scored of them are engine/fidelity.py's: the product measures itself in the
same way.

Needles are sentences with a number, hidden at several depths of a second reading and asked for at
its end: found where every token of the number is the likeliest. A model that finds less than half
of them as computed is too weak to be asked. The verdict is kept in models/verdicts.py.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from kvchat.bench.readers import PEERS, make_reader, parse_pair
from kvchat.bench.room import refuse_too_large
from kvchat.engine.engine import Engine
from kvchat.engine.fidelity import (
    AS_COMPUTED,
    CHUNK_TOKENS,
    LEAST_SCORED,
    Lengths,
    Sample,
    Score,
    encode,
    reading,
    reading_bytes,
)
from kvchat.errors import ModelError, SettingsError
from kvchat.models.verdicts import Verdict
from kvchat.wording import Language, say

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
LENGTHS = Lengths()


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
    if lengths.num_scored < LEAST_SCORED:
        raise SettingsError("bench_text_short", name=sample.name, tokens=len(ids))
    names = _named((AS_COMPUTED, *names))
    refuse_too_large(engine, _needed_bytes(engine, names, lengths.num_tokens))
    scores = _read(engine, names, ids, lengths)
    _find_needles(engine, names, scores, ids[: lengths.num_around_needles], sample.lang)
    computed = scores[AS_COMPUTED]
    asked = len(computed.needles) if 2 * sum(computed.needles) >= len(computed.needles) else 0
    for name in names:
        about = {"name": "fidelity", "model": loaded.name, "tokens": lengths.num_tokens}
        yield about | _row(name, scores[name], computed, asked, sample.name)


def _needed_bytes(engine: Engine, names: Sequence[str], num_tokens: int) -> int:
    pairs = [parse_pair(AS_COMPUTED if name in PEERS else name) for name in names]
    return engine.loaded.weight_bytes + reading_bytes(engine, pairs, num_tokens)


def _read(
    engine: Engine, names: Sequence[str], ids: Sequence[int], lengths: Lengths
) -> dict[str, Score]:
    readers = {name: make_reader(engine, name) for name in names}
    scores = {name: Score(reader.bits) for name, reader in readers.items()}
    for _ in reading(readers, scores, ids, lengths, engine.loaded.device):
        pass
    return scores


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


def _row(name: str, score: Score, computed: Score, needles_asked: int, text: str) -> dict[str, Any]:
    found = score.verdict(name, computed, text)
    return {
        "pair": name,
        "text": text,
        "bits": round(score.bits, 3),
        "scored": found.num_scored,
        "kl": found.kl,
        "same_percent": found.same_percent,
        "ppl": round(score.perplexity, 4),
        "ppl_percent": found.perplexity_percent,
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
