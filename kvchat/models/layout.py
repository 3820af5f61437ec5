"""How the weights of a CPU lie in memory: by rows, as files have them, or by columns.

A decode step reads every weight once to multiply it with one vector, and the processor decides
which order the library does that faster in: on an AMD Zen 5 MKL read columns at 25 GB/s and rows at
16, on others it is even. So it is measured, on the model's own weights. Only fp32: the kernels of
bf16 and fp16 want rows. Reading many tokens at once takes the same time either way.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvchat.device.oom import is_out_of_memory, release
from kvchat.units import MIB

# Less than this lies in the processor's caches, where order matters little.
LEAST_BYTES = 64 * MIB
NUM_ROUNDS = 5
CLEARLY = 0.9  # of the time: what is even stays as it is, so that it is the same at each start

Quicker = Callable[[Sequence[Tensor]], bool]


def columns_are_quicker(weights: Sequence[Tensor]) -> bool:
    """Whether one vector times these, [out, in] each, takes clearly less time by columns."""
    turned = [_by_columns(one) for one in weights]
    by_rows = by_columns = float("inf")
    for _ in range(NUM_ROUNDS):
        by_rows = min(by_rows, _seconds(weights))
        by_columns = min(by_columns, _seconds(turned))
    return by_columns < CLEARLY * by_rows


@torch.no_grad()
def lay_out(model: nn.Module, spare_bytes: int, quicker: Quicker = columns_are_quicker) -> int:
    """Turns the model's matrices where that is quicker; returns how many. Values and shapes stay.

    `spare_bytes`: what may be taken meanwhile, for a copy of one matrix at a time; one that is
    larger stays as it is, and all that are left where memory itself does not suffice.
    """
    found = [one for one in _matrices(model) if one.nbytes <= spare_bytes]
    sample = _sample(found)
    num_turned = 0
    try:
        if 2 * sum(one.nbytes for one in sample) > spare_bytes or not sample or not quicker(sample):
            return 0
        kept_bytes = 0
        for one in found:
            one.data = _by_columns(one)
            num_turned += 1
            kept_bytes += one.nbytes
            if kept_bytes >= LEAST_BYTES or one is found[-1]:
                release(one.device)  # the C library keeps what was let go of: 380 of 513 MiB
                kept_bytes = 0
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return num_turned


def _matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the model's products, each once, also where it serves as another's. Not those
    that hold something else than the floats they stand for (optimum-quanto's).
    """
    linears = (one for one in model.modules() if isinstance(one, nn.Linear))
    weights = {id(one.weight): one.weight for one in linears if type(one.weight) is nn.Parameter}
    return [one for one in weights.values() if one.dtype == torch.float32 and one.is_contiguous()]


def _sample(weights: Sequence[Tensor]) -> list[Tensor]:
    """As many as the caches cannot hold; none where all of them together are less."""
    sample, num_bytes = list[Tensor](), 0
    for one in weights:
        if num_bytes >= LEAST_BYTES:
            break
        sample.append(one)
        num_bytes += one.nbytes
    return sample if num_bytes >= LEAST_BYTES else []


def _by_columns(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()


def _seconds(weights: Sequence[Tensor]) -> float:
    vectors = {one.shape[1]: one.new_ones(1, one.shape[1]) for one in weights}
    began = time.perf_counter()
    for one in weights:
        linear(vectors[one.shape[1]], one)
    return time.perf_counter() - began
