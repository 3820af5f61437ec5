"""NVML as it is in the wild: absent, refusing, hanging, half-informed."""

import threading
import time

import pytest

from kvchat.device.nvml import Nvml, Usage, others_bytes
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
    assert nvml.usages("GPU-aaaa") is None
    assert nvml.usages("GPU-aaaa") is None
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
    assert nvml.usages("GPU-gone") is None
    assert nvml.usages("GPU-aaaa") == [Usage(5, 10)]
    assert nvml.problem is None
    assert nvml.driver_version() == "570.1"


def test_without_the_library_there_is_nothing_to_ask():
    nvml = Nvml(None)
    assert nvml.problem == "absent"
    assert nvml.usages("GPU-aaaa") is None


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
