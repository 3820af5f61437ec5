"""What the settings allow, given what the model was measured with."""

import pytest
import torch

from kvchat.engine.limits import Limits, limits_for
from kvchat.memory.verdicts import STEPS, Verdict
from kvchat.units import MIB
from tests.starts import resolve

CPU = torch.device("cpu")
SETTINGS = {"seal_format": "int8", "floor_format": "int4", "disk_format": "int8"}


def verdict(pair: str, *, passed: bool) -> tuple[str, Verdict]:
    kl, same = (0.001, 99.0) if passed else (0.4, 50.0)
    return pair, Verdict(pair, kl, same, 0.0, 512, "t", 0.0)


def limits(known: dict[str, Verdict], **changes: object) -> Limits:
    return limits_for(resolve(flags=SETTINGS | changes), CPU, known)


def stored(found: Limits) -> tuple[str, str, str]:
    return str(found.storing.seal), str(found.storing.floor), str(found.disk_format)


def test_the_planner_steps_down_to_nothing_that_was_not_measured() -> None:
    assert limits({}).lower == ()
    assert limits({}, allow_unproven=True).lower == STEPS
    passed = dict(verdict(str(pair), passed=True) for pair in STEPS)
    assert limits(passed).lower == STEPS
    assert limits(passed, floor_format="int8").lower == STEPS[:1]


@pytest.mark.parametrize(
    ("passed", "failed", "expected"),
    [
        ([], [], ("int8/int8", "int4/int4", "int8/int8")),
        ([], ["int8/int8"], ("fp/fp", "fp/fp", "fp/fp")),
        (["int8/int8"], ["int4/int4"], ("int8/int8", "int8/int8", "int8/int8")),
        (["int8/int8", "int6/int4"], ["int4/int4"], ("int8/int8", "int6/int4", "int8/int8")),
        (["int4/int4"], [], ("int8/int8", "int4/int4", "int8/int8")),
    ],
)
def test_what_failed_is_neither_written_nor_read_back(
    passed: list[str], failed: list[str], expected: tuple[str, str, str]
) -> None:
    """C08: whoever chose it before it was measured gets his text as computed, not rubbish."""
    known = dict([verdict(one, passed=True) for one in passed])
    known |= dict([verdict(one, passed=False) for one in failed])
    assert stored(limits(known)) == expected
    insisting = limits(known, allow_unproven=True)
    assert stored(insisting) == ("int8/int8", "int4/int4", "int8/int8")
    assert insisting.lower == STEPS


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("headroom", 3 * MIB, "headroom"),
        ("memory_budget", 700 * MIB, "budget"),
        ("ladder", ("evict", "drop_idle"), "ladder"),
        ("disk_quota", 5 * MIB, "disk_quota"),
        ("keep_originals", True, "keep_originals"),
        ("threads", 7, "threads"),
        ("evict_by", "heavy_hitter", "evict_by"),
    ],
)
def test_what_is_set_arrives(name: str, value: object, field: str) -> None:
    assert getattr(limits({}), field) != value
    assert getattr(limits({}, **{name: value}), field) == value


@pytest.mark.parametrize(
    ("seal", "floor", "failed", "reused"),
    [
        ("int4", "int6/int4", [], "int4/int4"),
        ("int8", "fp", [], "int8/int8"),
        ("int6", "int8/int4", [], "int6/int4"),
        ("int8", "int4", ["int4/int4"], "int8/int8"),
        ("fp", "int6/int4", [], "int6/int4"),
    ],
)
def test_a_text_is_always_reused_in_what_it_is_sealed_in(
    seal: str, floor: str, failed: list[str], reused: str
) -> None:
    """A higher floor would have each turn read the whole chat again, without a word."""
    known = dict(verdict(one, passed=False) for one in failed)
    found = limits(known, seal_format=seal, floor_format=floor).storing
    assert (str(found.floor), found.seal.at_least(found.floor)) == (reused, True)


@pytest.mark.parametrize(
    ("disk", "floor", "failed", "written"),
    [
        ("int4", "int6/int4", [], "int6/int4"),
        ("int8", "fp", [], "fp/fp"),
        ("int8/int4", "int6", [], "int8/int6"),
        ("int8", "int4", ["int4/int4"], "fp/fp"),
        ("int8", "int4", [], "int8/int8"),
    ],
)
def test_what_is_written_to_disk_is_read_back(
    disk: str, floor: str, failed: list[str], written: str
) -> None:
    known = dict(verdict(one, passed=False) for one in failed)
    found = limits(known, seal_format="fp", disk_format=disk, floor_format=floor)
    assert found.disk_format.at_least(found.storing.floor)
    assert str(found.disk_format) == written


def test_a_host_quota_on_a_cpu_takes_a_budget() -> None:
    assert limits({}, host_quota=MIB).host_quota == 0
    assert limits({}, host_quota=MIB, memory_budget=700 * MIB).host_quota == MIB
