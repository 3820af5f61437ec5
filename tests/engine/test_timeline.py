"""The ring of readings: bounded, one a slot, the scarcest of a slot, sums to the device."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.engine import Engine
from kvchat.engine.timeline import COLUMNS, Timeline, point_of
from tests.engine.conftest import MakeEngine


def frame(at_s: float, free: int) -> dict[str, Any]:
    return {
        "at_s": at_s,
        "device": {"free": free, "other_processes": 5},
        "weights_bytes": 10,
        "runtime_bytes": 2,
        "activations_bytes": 1,
        "library_bytes": 3,
        "kv": {"device_bytes": 4},
    }


def test_a_slot_keeps_its_scarcest_reading() -> None:
    line = Timeline(2.0, 60.0)
    for at_s, free in ((0.0, 50), (0.5, 20), (1.9, 40), (2.0, 30)):
        line.add(frame(at_s, free))
    assert [(one[0], one[-1]) for one in line.points()] == [(0.5, 20), (2.0, 30)]
    assert line.points()[0] == (0.5, 5, 10, 2, 1, 7, 20)
    assert len(COLUMNS) == 7


def test_a_clock_that_is_set_back_does_not_stop_it() -> None:
    line = Timeline(2.0, 60.0)
    for at_s in (5_000.0, 4_999.0, 1_400.0, 1_402.0):  # late, then an hour back
        line.add(frame(at_s, 9))
    assert [one[0] for one in line.points()] == [1_400.0, 1_402.0]


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 99)), max_size=200))
def test_whatever_comes_it_is_bounded_and_in_order(readings: list[tuple[float, int]]) -> None:
    line = Timeline(2.0, 40.0)
    for at_s, free in readings:
        line.add(frame(at_s, free))
    slots = [one[0] // 2.0 for one in line.points()]
    assert len(slots) <= 20
    assert slots == sorted(set(slots))


def test_a_point_sums_to_the_device(make_engine: MakeEngine) -> None:
    engine: Engine = make_engine()
    measured = engine.frame()
    assert sum(point_of(measured)[1:]) == measured["device"]["total"]
