"""Pairs of formats that somebody asks to be measured: told how far it is, and called off."""

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.proving import Proving
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import Verdict
from tests.engine.test_engine import MakeEngine
from tests.engine.test_proving import SHORT, after
from tests.tiny import passed_verdicts

INT2 = FormatPair.parse("int2")


@pytest.fixture
def engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("kvchat.engine.proving.LENGTHS", SHORT)
    return make_engine()


def asked(engine: Engine) -> tuple[Proving, dict[str, Verdict]]:
    """Of an engine of which all is known that a planner steps down to."""
    known = {one.pair: one for one in passed_verdicts()}

    def keep(found: list[Verdict]) -> None:
        known.update({one.pair: one for one in found})

    return Proving(engine, lambda: known, keep), known


def test_nothing_is_measured_until_somebody_asks(engine: Engine) -> None:
    proving, known = asked(engine)
    before = dict(known)
    assert not proving.go_on(lambda: False)
    assert (proving.stage, known) == ("done", before)
    proving.ask(INT2)
    while proving.go_on(lambda: False):
        pass
    assert proving.stage == "done"
    assert set(known) - set(before) == {"int2/int2"}
    assert known["int2/int2"].num_scored == SHORT.num_scored
    assert proving.progress == {"pairs": [], "done": 0, "of": 0, "found": 1}


def test_it_is_told_how_far_it_is(engine: Engine) -> None:
    proving, _ = asked(engine)
    proving.ask(INT2)
    proving.go_on(after(3))
    found = proving.progress
    assert (proving.stage, found["pairs"], found["done"]) == ("measuring", ["int2/int2"], 3)
    assert found["of"] == 2 * SHORT.num_tokens // 64
    proving.rest()


def test_called_off_it_holds_nothing_and_is_asked_again(engine: Engine) -> None:
    proving, known = asked(engine)
    proving.ask(INT2)
    proving.go_on(after(3))
    proving.cancel()
    assert not proving.go_on(lambda: False)
    assert (proving.stage, proving.progress["pairs"]) == ("done", [])
    assert "int2/int2" not in known
    proving.ask(INT2)
    while proving.go_on(lambda: False):
        pass
    assert "int2/int2" in known


def test_what_is_known_is_measured_again_when_asked(engine: Engine) -> None:
    proving, known = asked(engine)
    before = known["int8/int8"]
    proving.ask(FormatPair.parse("int8"))
    while proving.go_on(lambda: False):
        pass
    assert known["int8/int8"] != before
