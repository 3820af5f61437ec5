"""A probe that fails, freezes or says what cannot be: what is read of it all the same."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.device.fake import FakeProbe
from kvchat.device.guarded import GuardedProbe, believable
from kvchat.device.memory import DeviceMemory
from kvchat.device.monitor import Monitor
from kvchat.device.nvml import Nvml
from kvchat.device.others import OtherPrograms
from kvchat.errors import ModelError
from kvchat.units import GIB
from kvchat.wording import LANGUAGES
from tests.device.fake_nvml import FakeNvml, Process
from tests.device.liars import LIES, Liar, Lie

TRUE = DeviceMemory("cuda:0", 8 * GIB, 5 * GIB, 2 * GIB, GIB, GIB, 100.0)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def until(comes: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    for _ in range(4000):
        if comes():
            return
        time.sleep(0.005)
    pytest.fail("it never came")


@pytest.fixture
def liar() -> Iterator[Liar]:
    made = Liar(TRUE)
    yield made
    made.thaw()


def test_a_good_probe_is_read_as_it_is(liar: Liar) -> None:
    probe = GuardedProbe(liar)
    assert probe.read() == TRUE
    liar.true = replace(TRUE, free=1)
    assert probe.read() == liar.true
    assert probe.problem is None


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_the_last_good_reading_stands_and_its_age_is_told(liar: Liar, lie: Lie) -> None:
    clock = Clock()
    probe = GuardedProbe(liar, clock=clock)
    probe.read()
    truth, liar.lie = liar.lie, lie
    clock.now_s = 7.0
    found = probe.read()
    assert (found.total, found.free, found.at_s) == (TRUE.total, TRUE.free, TRUE.at_s)
    assert found.age_s == 7.0
    assert {"free", "other_processes"} <= set(found.estimated)
    assert probe.problem in ("fails", "impossible")
    liar.lie = truth
    assert probe.read() == TRUE
    assert probe.problem is None


def test_a_probe_that_freezes_keeps_one_thread_and_nobody_waiting(liar: Liar) -> None:
    probe = GuardedProbe(liar, time_limit_s=0.05)
    probe.read()
    liar.freeze()
    asked = liar.asked
    for _ in range(100):
        assert probe.read().age_s > 0
    assert liar.asked == asked + 1
    assert probe.problem == "hangs"
    liar.thaw()
    probe._asking.join(5)  # type: ignore[union-attr]
    assert probe.read() == TRUE
    assert probe.problem is None


def test_what_is_said_too_late_is_newer_than_what_stands(liar: Liar) -> None:
    """A driver that takes longer than anybody waits for it, each time."""
    clock = Clock()
    probe = GuardedProbe(liar, time_limit_s=0.02, clock=clock)
    probe.read()
    for seconds in range(1, 4):
        liar.freeze()
        clock.now_s = float(seconds)
        assert probe.read().free == TRUE.free - (seconds - 1)
        liar.true = replace(TRUE, free=TRUE.free - seconds)
        liar.thaw()
        probe._asking.join(5)  # type: ignore[union-attr]
    liar.freeze()
    clock.now_s = 10.0
    found = probe.read()
    assert (found.free, found.age_s) == (TRUE.free - 3, 7.0)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_one_that_never_told_the_truth_is_one_sentence(liar: Liar, lie: Lie) -> None:
    liar.lie = lie
    with pytest.raises(ModelError) as caught:
        GuardedProbe(liar).read()
    assert caught.value.code == "device_unreadable"
    for lang in LANGUAGES:
        assert caught.value.message(lang)
        assert caught.value.remedy(lang)


def test_where_no_thread_can_be_had_it_is_read_without(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    assert GuardedProbe(liar).read() == TRUE


def test_more_free_than_torch_leaves_is_cut() -> None:
    """2 GiB of 8 are torch's, so 6 are free at most."""
    found = believable(replace(TRUE, free=7 * GIB, other_processes=0))
    assert found is not None
    assert found.free == 6 * GIB
    on_cpu = replace(TRUE, free=7 * GIB, allocated=0, shared=True)
    assert believable(on_cpu) == on_cpu  # there `reserved` counts what the system can drop


@given(
    total=st.integers(-1, 10),
    free=st.integers(-2, 12),
    reserved=st.integers(-1, 12),
    allocated=st.integers(-1, 12),
    others=st.integers(-1, 12),
)
def test_what_is_believed_can_be(
    total: int, free: int, reserved: int, allocated: int, others: int
) -> None:
    found = believable(DeviceMemory("cuda:0", total, free, reserved, allocated, others, 0.0))
    if found is not None:
        assert 0 <= found.free <= found.total
        assert found.total > 0
        assert found.other_processes >= 0
        assert found.free <= free


def test_a_monitor_samples_by_itself_until_it_is_closed() -> None:
    readings = [replace(TRUE, free=n) for n in range(1, 5)]
    monitor = Monitor(FakeProbe(readings), interval_s=0.01)
    assert monitor.newest is None
    monitor.start()
    monitor.start()
    until(lambda: monitor.newest == readings[-1])
    monitor.close()
    thread = monitor._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    monitor.start()
    assert monitor._thread is thread


def test_a_monitor_survives_a_probe_that_never_answers_well(liar: Liar) -> None:
    liar.lie = LIES["raises"]
    monitor = Monitor(liar, interval_s=0.01)
    monitor.start()
    until(lambda: liar.asked > 5)
    assert monitor.newest is None
    liar.lie = lambda true: true
    until(lambda: monitor.newest is not None)
    monitor.close()
    assert monitor.newest == TRUE


def test_only_the_monitor_asks_nvml_once_it_runs() -> None:
    library = FakeNvml({"GPU-aaaa": [Process("own", GIB), Process(7, GIB)]})
    others = OtherPrograms(Nvml(library), ("GPU-aaaa",))
    assert others.told() is not None
    others = OtherPrograms(Nvml(library), ("GPU-aaaa",))
    others.kept_by_monitor = True
    assert others.told() is None
    monitor = Monitor(FakeProbe([TRUE]), others, interval_s=0.01)
    monitor.start()
    until(lambda: others.told() is not None)
    monitor.close()
    told = others.told()
    assert told is not None
    assert told.num_bytes == GIB
