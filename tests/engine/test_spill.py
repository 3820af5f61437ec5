"""A driver that moves memory to the computer's says nothing: steps that crawl near the limit do."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine import measuring
from kvchat.engine.engine import Engine
from kvchat.engine.events import Took
from kvchat.engine.limits import Limits
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB, MIB
from kvchat.wording import LANGUAGES, say
from tests.engine.test_engine import done, random_ids, request

NEAR = DeviceMemory("cuda:0", 8 * GIB, 600 * MIB, 0, 0, 0, 0.0)


class Clock:
    """Seconds by hand: each look at it takes `step_s`."""

    def __init__(self) -> None:
        self.now_s, self.step_s = 0.0, 0.001

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def spills(
    loaded: LoadedModel, device: DeviceMemory, slower: float, at: int = 40
) -> list[dict[str, str]]:
    """What is said of it in an answer whose steps become slower at a token."""
    clock = Clock()
    endless = replace(loaded, eos_token_ids=frozenset())
    limits = Limits(None, 512 * MIB, RUNGS)
    engine = Engine(endless, FakeProbe([device]), limits, clock)
    found, events = [], []
    for event in engine.run(request(random_ids(20), max_new_tokens=100)):
        events.append(event)
        if len(events) == at:
            clock.step_s *= slower
        if isinstance(event, Took) and event.entry["code"] == "spill":
            found.append(event.entry["arguments"])
    assert len(done(events).ids) == 100
    return found


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "may_spill", lambda *_: True)


def test_it_is_said_once_with_how_much_slower(
    load_tiny: Callable[[str], LoadedModel], on_windows: None
) -> None:
    (arguments,) = spills(load_tiny("llama"), replace(NEAR, free=400 * MIB), 10)
    assert 4 <= float(arguments["times"]) <= 10
    for lang in LANGUAGES:
        assert arguments["times"] in say("ledger.spill", lang, **arguments)
        assert say("reason.driver_spills", lang)


@pytest.mark.parametrize(
    ("free", "slower"), [(5 * GIB, 10), (400 * MIB, 2)], ids=["much is free", "a little slower"]
)
def test_nothing_is_said_without_a_reason(
    load_tiny: Callable[[str], LoadedModel], on_windows: None, free: int, slower: float
) -> None:
    assert spills(load_tiny("llama"), replace(NEAR, free=free), slower) == []


def test_nothing_is_said_where_no_driver_does_it(load_tiny: Callable[[str], LoadedModel]) -> None:
    assert spills(load_tiny("llama"), replace(NEAR, free=400 * MIB), 10) == []
