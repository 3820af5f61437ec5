"""NVML as it is in the wild: absent, refusing, hanging, half-informed."""

import threading
import time

import pytest

from kvchat.device.nvml import CardUsage, Nvml, Usage, others_bytes
from tests.device.fake_nvml import FakeNvml, Process


class Hanging(FakeNvml):
    """Answers nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__({"GPU-aaaa": [Process("own", 1)]})
        self.let_go = threading.Event()
        self.asked = 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked += 1
        self.let_go.wait(30)
        return super().nvmlDeviceGetHandleByUUID(uuid)


def test_a_call_that_hangs_is_left_and_never_made_again():
    library = Hanging()
    nvml = Nvml(library, time_limit_s=0.1)
    began = time.monotonic()
    assert nvml.card(("GPU-aaaa",)) is None
    assert nvml.card(("GPU-aaaa",)) is None
    assert time.monotonic() - began < 5
    assert library.asked == 1
    assert nvml.problem == "hangs"
    library.let_go.set()


def test_a_library_that_refuses_is_not_asked_again():
    nvml = Nvml(FakeNvml({}, refuses=True))
    assert nvml.problem == "refuses"
    assert nvml.driver_version() is None


def test_one_card_that_cannot_be_asked_leaves_the_others():
    nvml = Nvml(FakeNvml({"GPU-aaaa": [Process(5, 10)]}))
    assert nvml.card(("GPU-gone",)) is None
    assert nvml.card_problem == "unknown_card"
    assert nvml.card(("GPU-aaaa",)) == CardUsage((Usage(5, 10),), None)
    assert (nvml.problem, nvml.card_problem) == (None, None)
    assert nvml.driver_version() == "570.1"


def test_without_the_library_there_is_nothing_to_ask():
    nvml = Nvml(None)
    assert nvml.problem == "absent"
    assert nvml.card(("GPU-aaaa",)) is None


def test_a_card_that_is_not_known_by_its_uuid_is_found_by_its_place():
    library = FakeNvml({"GPU-aaaa": [Process(5, 10)]}, places={"00000000:01:00.0": "GPU-aaaa"})
    nvml = Nvml(library)
    assert nvml.card(("GPU-other", "00000000:01:00.0")) == CardUsage((Usage(5, 10),), None)


def test_a_card_in_slices_is_left_alone_however_it_is_found():
    """A slice has a UUID that NVML does not know as a card's, but its place is the whole card's."""
    library = FakeNvml(
        {"GPU-aaaa": [Process(5, 10)]}, sliced=True, places={"00000000:01:00.0": "GPU-aaaa"}
    )
    nvml = Nvml(library)
    assert nvml.card(("GPU-slice", "00000000:01:00.0")) is None
    assert nvml.card_problem == "sliced"


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        (None, None),
        ([], None),
        ([Usage(1, 10)], 0),
        ([Usage(1, 10), Usage(2, 5), Usage(3, 6)], 11),
        ([Usage(1, None), Usage(2, 5)], 5),
        ([Usage(1, 10), Usage(2, None)], None),
        ([Usage(8, 10), Usage(9, 5)], None),
    ],
)
def test_others_are_counted_only_where_this_process_is_seen(
    usages: list[Usage] | None, expected: int | None
):
    assert others_bytes(usages, own_pid=1) == expected
