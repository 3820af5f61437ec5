"""Figures for steps from what others took: never too low for what was measured, and near it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.memory.calibrate import UNCALIBRATED, Calibration, Step

SIZES = st.tuples(st.integers(1, 512), st.integers(0, 4000)).map(lambda s: (s[0], s[0] + s[1]))


def estimate(chunk: int, context: int) -> int:
    return 4096 * chunk + 64 * context + 100_000


def taken(chunk: int, context: int) -> int:
    """What steps of a made-up model take: a part of the estimate that differs by size."""
    return 2500 * chunk + 10 * context + 90_000


def step(chunk: int, context: int, measured: int | None = None) -> Step:
    took = taken(chunk, context) if measured is None else measured
    return Step(chunk, context, estimate(chunk, context), took)


def figure(calibration: Calibration, chunk: int, context: int) -> int:
    return calibration.figure(chunk, context, estimate(chunk, context))


def test_without_a_measurement_the_estimate_stands() -> None:
    assert figure(UNCALIBRATED, 512, 4096) == estimate(512, 4096)
    assert not UNCALIBRATED.knows(512, 4096)


@given(sizes=st.lists(SIZES, min_size=1, max_size=40), noise=st.data())
def test_no_figure_is_below_what_such_a_step_took(
    sizes: list[tuple[int, int]], noise: st.DataObject
) -> None:
    """Whatever was measured, even where a larger step took less."""
    steps = [step(*size, noise.draw(st.integers(1, 2**24))) for size in sizes]
    calibration = Calibration.of(steps)
    for one in steps:
        assert figure(calibration, one.chunk_tokens, one.context_tokens) >= one.measured_bytes
        assert calibration.knows(one.chunk_tokens, one.context_tokens)


@given(sizes=st.lists(SIZES, min_size=1, max_size=40))
def test_a_measured_step_is_foretold_within_ten_percent(sizes: list[tuple[int, int]]) -> None:
    calibration = Calibration.of(step(*size) for size in sizes)
    for size in sizes:
        assert taken(*size) <= figure(calibration, *size) <= 1.1 * taken(*size)


@given(sizes=st.lists(SIZES, min_size=1, max_size=20), asked=SIZES)
def test_a_step_in_between_lies_between_truth_and_estimate(
    sizes: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    calibration = Calibration.of(step(*size) for size in sizes)
    assert taken(*asked) <= figure(calibration, *asked) <= 1.1 * estimate(*asked)


def test_between_two_the_larger_holds_and_beyond_all_the_estimate() -> None:
    calibration = Calibration.of([step(512, 1024), step(512, 4096)])
    assert figure(calibration, 512, 3500) == taken(512, 4096)
    assert figure(calibration, 512, 1030) == taken(512, 4096)
    assert figure(calibration, 512, 8192) == estimate(512, 8192)
    assert figure(calibration, 100, 200) == min(estimate(100, 200), taken(512, 1024))


def test_an_estimate_that_was_too_low_is_raised_for_every_size() -> None:
    calibration = Calibration.of([step(64, 64, 2 * estimate(64, 64))])
    assert figure(calibration, 512, 4096) == 2 * estimate(512, 4096)
    assert figure(calibration, 32, 32) == 2 * estimate(32, 32)


def test_decoding_and_reading_tell_nothing_of_each_other() -> None:
    calibration = Calibration.of([step(1, 4096, 10)])
    assert figure(calibration, 1, 4096) == 10
    assert figure(calibration, 2, 2) == estimate(2, 2)
    calibration = Calibration.of([step(512, 4096, 10)])
    assert figure(calibration, 1, 1) == estimate(1, 1)


def test_what_ran_out_needs_more_until_it_succeeds() -> None:
    calibration = Calibration.of([step(512, 4096)])
    failed = calibration.with_shortage(512, 4096, estimate(512, 4096))
    more = figure(failed, 512, 4096)
    assert taken(512, 4096) < more < 1.1 * taken(512, 4096)
    assert figure(failed, 512, 2048) == figure(calibration, 512, 2048)
    assert failed.after_success(256, 4096) is failed
    assert failed.after_success(512, 4096) == calibration
    assert failed.with_step(step(512, 5000)).short == ()


def test_running_out_again_and_again_asks_for_no_more_than_twice_the_estimate() -> None:
    calibration = UNCALIBRATED
    for _ in range(100):
        calibration = calibration.with_shortage(512, 512, estimate(512, 512))
    assert figure(calibration, 512, 512) == 2 * estimate(512, 512)


def test_what_is_not_new_changes_nothing() -> None:
    calibration = Calibration.of([step(512, 4096)])
    assert calibration.with_step(step(512, 4096)) is calibration
    assert calibration.with_step(step(512, 4096, taken(512, 4096) - 5)) is calibration


def test_a_long_life_keeps_a_bounded_number_of_steps() -> None:
    calibration = Calibration.of(
        step(chunk, chunk + more) for chunk in range(1, 400, 3) for more in (0, 500, 1500, 4000)
    )
    assert len(calibration.steps) == 192
    assert calibration.knows(397, 397 + 4000)


@pytest.mark.parametrize("chunk", [1, 32, 512])
def test_lengths_of_one_slot_are_kept_as_one(chunk: int) -> None:
    calibration = Calibration.of(step(chunk, context) for context in range(4000, 4040))
    assert len(calibration.steps) <= 6  # two slots' smallest and largest, and those that fill
    assert figure(calibration, chunk, 4020) >= taken(chunk, 4020)
