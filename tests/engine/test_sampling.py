"""Held to Hugging Face's logits processors: the same tokens, with the same probabilities."""

import time

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvchat.engine.events import Sampling
from kvchat.engine.sampling import Sampler
from kvchat.errors import ModelError

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, -1.0, 1.5, 0.3, 1.9, -3.0, 0.0, 0.9, -0.2, 1.2, -5.0, 0.7])


def sampler(**wanted: object) -> Sampler:
    return Sampler(Sampling(**wanted), CPU)  # type: ignore[arg-type]


def library_probabilities(logits: torch.Tensor, wanted: Sampling, seen: list[int]) -> torch.Tensor:
    steps = LogitsProcessorList()
    if wanted.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(wanted.repetition_penalty))
    steps.append(TemperatureLogitsWarper(wanted.temperature))
    if wanted.top_k:
        steps.append(TopKLogitsWarper(wanted.top_k))
    if wanted.top_p < 1.0:
        steps.append(TopPLogitsWarper(wanted.top_p))
    if wanted.min_p:
        steps.append(MinPLogitsWarper(wanted.min_p))
    return steps(torch.tensor([seen]), logits[None].clone())[0].softmax(-1)


@pytest.mark.parametrize(
    "wanted",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.6, "top_k": 4},
        {"temperature": 1.3, "min_p": 0.3},
        {"temperature": 1.2, "top_k": 8, "top_p": 0.7, "min_p": 0.2},
        {"temperature": 1.0, "top_p": 0.01},
        {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.7},
        {"temperature": 0.9, "top_k": 6, "repetition_penalty": 0.6},
    ],
    ids=str,
)
def test_draws_what_the_library_would(wanted: dict[str, float]) -> None:
    seen = [0, 4, 4, 1]
    asked = Sampling(seed=1, **wanted)  # type: ignore[arg-type]
    expected = library_probabilities(LOGITS, asked, seen)
    one = Sampler(asked, CPU)
    num_draws = 4000
    counts = torch.zeros(len(LOGITS))
    for _ in range(num_draws):
        counts[one.draw(LOGITS, torch.tensor(seen))] += 1
    assert not counts[expected == 0].any()
    # five standard deviations of a binomial
    allowed = 5 * (expected * (1 - expected) / num_draws).sqrt() + 1e-9
    assert ((counts / num_draws - expected).abs() <= allowed).all()


@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_top_p_is_exact_for_a_large_vocabulary(top_p: float) -> None:
    """Flat enough that more tokens stay than are looked at first."""
    logits = torch.randn(20_000, generator=torch.Generator().manual_seed(3)) * 0.5
    wanted = Sampling(temperature=1.0, top_p=top_p, seed=5)
    possible = library_probabilities(logits, wanted, []) > 0
    num_possible = int(possible.sum())
    assert num_possible > 1024
    one = Sampler(wanted, CPU)
    drawn = [one.draw(logits, None) for _ in range(300)]
    assert all(possible[i] for i in drawn)
    least_likely = logits[possible].sort().values[num_possible // 4]
    assert (logits[drawn] < least_likely).any(), "the unlikely quarter was never drawn"


def test_greedy_is_the_first_of_the_greatest() -> None:
    logits = torch.tensor([0.0, 7.0, 7.0, -1.0])
    assert sampler().draw(logits, None) == 1
    assert sampler(top_k=1, temperature=2.0, seed=0).draw(torch.tensor([0.0, 7.0, 6.0]), None) == 1


def test_greedy_obeys_the_penalty_without_touching_the_logits() -> None:
    logits = torch.tensor([3.0, 2.9, -1.0])
    one = sampler(repetition_penalty=1.5)
    assert one.draw(logits, torch.tensor([0])) == 1
    assert one.draw(logits, None) == 0
    assert one.draw(logits, torch.tensor([], dtype=torch.long)) == 0
    assert logits.tolist() == pytest.approx([3.0, 2.9, -1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_seed_gives_the_same_tokens(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    samplers = [sampler(temperature=1.0, seed=11) for _ in range(2)]
    runs = [[one.draw(logits, None) for _ in range(40)] for one in samplers]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 3
    other = sampler(temperature=1.0, seed=12)
    assert [other.draw(logits, None) for _ in range(40)] != runs[0]


def test_no_seed_is_not_a_fixed_seed() -> None:
    samplers = [sampler(temperature=1.5) for _ in range(3)]
    runs = {tuple(one.draw(LOGITS, None) for _ in range(30)) for one in samplers}
    assert len(runs) == 3


def test_a_restored_step_draws_the_same_again() -> None:
    one = sampler(temperature=1.0, seed=2**63 - 1)
    one.draw(LOGITS, None)
    saved = one.save()
    first = [one.draw(LOGITS, None) for _ in range(20)]
    one.restore(saved)
    assert [one.draw(LOGITS, None) for _ in range(20)] == first


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    sampler(temperature=1.0).draw(LOGITS, None)
    assert torch.equal(torch.rand(3), expected)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize(
    "bad", [[NAN, 1.0], [1.0, NAN], [-INF, -INF], [1.0, INF], [NAN, NAN]], ids=str
)
def test_unusable_logits_are_said_not_drawn(
    bad: list[float], penalty: float, temperature: float
) -> None:
    one = sampler(temperature=temperature, repetition_penalty=penalty)
    with pytest.raises(ModelError, match=r"no usable numbers in float16.*--dtype"):
        one.draw(torch.tensor(bad, dtype=torch.float16), torch.tensor([0]))


@pytest.mark.parametrize("wanted", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 1.0, 5.0])
def test_banned_tokens_are_never_drawn(wanted: dict[str, float], temperature: float) -> None:
    logits = torch.full((50,), -INF)
    logits[7], logits[49] = 1.0, 1.0
    one = sampler(temperature=temperature, seed=0, **wanted)
    assert {one.draw(logits, None) for _ in range(50)} == {7, 49}


def test_greedy_costs_little_beside_a_step() -> None:
    """A decode step takes 12 ms and more; the best of many rounds leaves other programs out."""
    logits = torch.randn(150_000)
    one = sampler()
    best_s = min(_seconds(one, logits) for _ in range(30))
    assert best_s < 0.002


def _seconds(one: Sampler, logits: torch.Tensor) -> float:
    started = time.perf_counter()
    one.draw(logits, None)
    return time.perf_counter() - started
