"""What a step must compute and read at least: the closed forms equal the sums they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.memory.work import Work, attended_pairs, decode_bytes, prefill_flops

FULL = LayerSpec("full", 2, 64, 64)
SLIDING = LayerSpec("sliding", 2, 64, 64, window=16)
NONE = LayerSpec("none")


def spec(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("m", layers, 128, 256, 1000, 4, 10_000, 4096)


@given(st.integers(0, 300), st.integers(0, 300), st.one_of(st.none(), st.integers(1, 200)))
def test_pairs_are_the_sum_over_positions(start: int, more: int, window: int | None) -> None:
    expected = sum(
        min(p + 1, window) if window is not None else p + 1 for p in range(start, start + more)
    )
    assert attended_pairs(start, start + more, window) == expected


def test_flops_of_a_prompt_by_hand() -> None:
    work = Work(0, token_params=1_000, head_params=500)
    layer = 2 * 4 * (64 + 64)
    assert prefill_flops(spec(NONE), work, 0, 10, 1) == 2 * 1_000 * 10 + 2 * 500
    assert prefill_flops(spec(FULL), work, 0, 10, 2) == 20_000 + 2_000 + layer * 55
    assert prefill_flops(spec(FULL), work, 8, 10, 1) == 4_000 + 1_000 + layer * (9 + 10)
    assert prefill_flops(spec(SLIDING), work, 20, 22, 1) == 4_000 + 1_000 + layer * 32


def test_what_is_reused_is_not_computed() -> None:
    work = Work(0, 1_000, 500)
    whole = prefill_flops(spec(FULL), work, 0, 100, 1)
    parts = prefill_flops(spec(FULL), work, 0, 60, 1) + prefill_flops(spec(FULL), work, 60, 100, 0)
    assert whole == parts


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (1, 1_150), (10, 11_500)])
def test_each_step_reads_weights_and_the_text(steps: int, expected: int) -> None:
    assert decode_bytes(Work(1_000, 0, 0), steps, 100, 200) == expected
