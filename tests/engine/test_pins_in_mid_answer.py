"""Memory that runs out in mid answer while pinned text could have been given up: that is said."""

from dataclasses import replace

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Failed, Request, Token
from kvchat.errors import OutOfMemory
from kvchat.kvcache.spans import Span
from kvchat.wording import LANGUAGES
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import random_ids

TURN, NUM_TURNS = 200, 4
SPANS = tuple(Span("turn", f"t{i}", i + 1, i * TURN, (i + 1) * TURN) for i in range(NUM_TURNS))


def asked(old: tuple[tuple[int, int], ...], spans: tuple[Span, ...] = SPANS) -> Request:
    ids = random_ids(NUM_TURNS * TURN)
    return Request(ids, spans, 1200, prefill_chunk=32, old=old)


def budget_of(engine: Engine) -> int:
    """For the prompt, and some of the reply."""
    return engine.costs.needed_bytes(NUM_TURNS * TURN + 64, 32)


@pytest.mark.parametrize(
    ("pinned", "code", "turns"),
    [((0, 2), "out_of_memory_pinned", "1, 3"), ((0, 1, 2), "out_of_memory_pinned", "1, 2, 3")],
)
def test_pinned_turns_are_named(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, pinned: tuple[int, ...], code: str,
    turns: str,
) -> None:  # fmt: skip
    """The answer so far is kept; without the pins more of it is made."""
    budget = budget_of(make_engine())
    free = tuple((one.start, one.stop) for one in SPANS[:-1])
    engine = make_engine(budget=budget, rungs=("drop_idle", "shrink_chunk", "evict"))
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    kept = tuple(one for i, one in enumerate(free) if i not in pinned)
    events = list(engine.run(asked(kept)))
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert sum(isinstance(event, Token) for event in events) == len(failed.ids) > 50
    assert isinstance(failed.error, OutOfMemory)
    assert (failed.error.code, failed.error.facts["turns"]) == (code, turns)
    longer = list(engine.run(asked(free)))[-1]
    assert isinstance(longer, Failed | Done)
    assert len(longer.ids) > len(failed.ids)
    for lang in LANGUAGES:
        assert turns in failed.error.message(lang)
        assert turns in failed.error.remedy(lang)


def test_a_pinned_document_is_said(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = budget_of(make_engine())
    document = Span("document", "d", None, 0, 3 * TURN)
    engine = make_engine(budget=budget, rungs=("drop_idle", "shrink_chunk", "offload"))
    engine.limits = replace(engine.limits, host_quota=2**24)
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    failed = list(engine.run(asked((), (document, SPANS[-1]))))[-1]
    assert isinstance(failed, Failed)
    assert failed.error.code == "out_of_memory_pinned_documents"


def test_where_pins_would_not_have_helped_they_are_not_named(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = budget_of(make_engine())
    engine = make_engine(budget=budget, rungs=("drop_idle", "shrink_chunk"))
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    failed = list(engine.run(asked(())))[-1]
    assert isinstance(failed, Failed)
    assert failed.error.code == "out_of_memory"
