"""A collapse of decoding near the limit, and what is none."""

import random
from collections.abc import Iterable

import pytest

from kvchat.device.headroom import may_spill
from kvchat.device.spill import NUM_STEPS, Pace
from kvchat.units import GIB, MIB

WEIGHTS, HEADROOM = 8 * GIB, GIB


def told(steps: Iterable[tuple[float, int, int]]) -> list[int]:
    """The steps (seconds, KV bytes, free bytes) at which a spill begins."""
    pace, found = Pace(), []
    for number, (step_s, kv_bytes, free) in enumerate(steps):
        before, pace = pace, pace.after(step_s, WEIGHTS + kv_bytes, free, HEADROOM)
        if pace.is_spilling and not before.is_spilling:
            found.append(number)
    return found


def steps(count: int, step_s: float, free: int, kv_bytes: int = 0) -> list[tuple[float, int, int]]:
    return [(step_s, kv_bytes, free)] * count


def test_a_collapse_near_the_limit_is_told_once() -> None:
    found = told(steps(50, 0.02, 200 * MIB) + steps(100, 0.3, 10 * MIB))
    assert len(found) == 1
    assert 50 <= found[0] < 50 + NUM_STEPS


def test_one_that_ends_and_comes_back_is_told_again() -> None:
    fast, slow = steps(50, 0.02, 10 * MIB), steps(50, 0.3, 10 * MIB)
    assert len(told(fast + slow + fast + slow)) == 2


@pytest.mark.parametrize(
    "trace",
    [
        steps(50, 0.02, 200 * MIB) + steps(50, 0.3, 4 * GIB),
        steps(50, 0.02, 0) + steps(50, 0.07, 0),
        (steps(20, 0.02, 0) + steps(3, 2.0, 0)) * 5,
        steps(50, 0.3, 0),
        [(0.02 * (1 + kv / 8), kv * GIB, 0) for kv in range(80) for _ in range(10)],
    ],
    ids=["much is free", "a little slower", "hiccups", "slow from the first", "a text that grows"],
)
def test_what_is_no_spill(trace: list[tuple[float, int, int]]) -> None:
    assert told(trace) == []


def test_a_rate_that_swings_around_the_bound_is_told_once() -> None:
    chance = random.Random(1)
    swinging = [
        (0.02 * chance.uniform(3.2, 5.5), 0, chance.choice([0, HEADROOM])) for _ in range(500)
    ]
    assert len(told(steps(50, 0.02, 0) + swinging)) == 1


def test_how_much_slower_is_said() -> None:
    pace = Pace()
    for step_s in [0.02] * 20 + [0.2] * NUM_STEPS:
        pace = pace.after(step_s, WEIGHTS, 0, HEADROOM)
    assert pace.times_slower == pytest.approx(10)
    assert Pace().times_slower == 1.0


@pytest.mark.parametrize(
    ("device_type", "system", "expected"),
    [
        ("cuda", "Windows", True),
        ("cuda", "Linux", False),
        ("cpu", "Windows", False),
        ("xpu", "Windows", False),
        ("mps", "Darwin", False),
    ],
)
def test_only_where_the_driver_can(device_type: str, system: str, expected: bool) -> None:
    assert may_spill(device_type, system) is expected
