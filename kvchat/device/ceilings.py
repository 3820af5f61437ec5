"""The most that a device was seen to read and to compute a second: measured, not looked up.

    bytes_per_s    the fastest of: tensors that are given read once, as a dot product with
                   themselves; and, on a card, a copy, of which what is read and what is written
                   count
    flops_per_s    a product of two square matrices in the dtype that the model computes in

The tensors are the model's weights, which lie there anyway and are larger than what a processor
keeps to itself; little is allocated beside them. (On a CPU a copy of that little would stay in its
caches and say nothing of its memory.) The best of a few times counts: what other programs do
meanwhile only slows it down. Knows no model and no file.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COPIED_BYTES = 128 * 1024**2  # each of the two; more than any card keeps in its caches
MOST_READ_BYTES = 1024**3
_LEAST_READ_BYTES = 1024**2  # a smaller tensor takes longer to begin than to read
_TIMES = 4


@dataclass(frozen=True, slots=True)
class Ceilings:
    bytes_per_s: float
    flops_per_s: float


def needed_bytes(device: torch.device, dtype: torch.dtype) -> int:
    """What measuring allocates at the most: one of its pieces at a time."""
    multiplied = 2 * _side(device) ** 2 * dtype.itemsize
    return multiplied if device.type == "cpu" else max(multiplied, 2 * COPIED_BYTES)


def measuring(tensors: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Ceilings]:
    """What was found so far, after each piece of some milliseconds; the last one counts.

    tensors: of one device, any dtype and shape, not mutated; at least one. Raises what an
    allocation raises. Nothing is held between the pieces.
    """
    device = tensors[0].device
    rows = _largest(tensors)
    bytes_per_s = flops_per_s = 0.0
    for _ in range(_TIMES):
        spent_s = sum(_seconds(_Read(row), device) for row in rows)
        if spent_s:
            bytes_per_s = max(bytes_per_s, sum(row.nbytes for row in rows) / spent_s)
            yield Ceilings(bytes_per_s, flops_per_s)
        if device.type != "cpu":
            bytes_per_s = max(bytes_per_s, _copied_per_s(device))
            yield Ceilings(bytes_per_s, flops_per_s)
        flops_per_s = max(flops_per_s, _flops_per_s(device, dtype))
        yield Ceilings(bytes_per_s, flops_per_s)


def _largest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Their bytes as rows of fp32, whatever they mean: the largest first, each storage once."""
    storages = {one.untyped_storage().data_ptr(): one for one in tensors}
    ordered = sorted(storages.values(), key=lambda one: -one.untyped_storage().nbytes())
    rows: list[Tensor] = []
    for row in map(_as_floats, ordered):
        fits = sum(one.nbytes for one in rows) + row.nbytes <= MOST_READ_BYTES
        if row.nbytes >= _LEAST_READ_BYTES and (fits or not rows):
            rows.append(row[: MOST_READ_BYTES // 4])
    return rows


def _as_floats(tensor: Tensor) -> Tensor:
    """[bytes / 4], a view of the tensor's storage."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    return whole[: whole.numel() // 4 * 4].view(torch.float32)


@dataclass(frozen=True, slots=True)
class _Read:
    row: Tensor

    def __call__(self) -> Tensor:
        return torch.dot(self.row, self.row)


def _copied_per_s(device: torch.device) -> float:
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)  # the first touches every page
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    side = _side(device)
    matrix = torch.full((side, side), 0.5, dtype=dtype, device=device)
    product = torch.empty_like(matrix)
    return 2 * side**3 / _seconds(lambda: torch.mm(matrix, matrix, out=product), device)


def _side(device: torch.device) -> int:
    """So large that the product takes some milliseconds."""
    return 1024 if device.type == "cpu" else 4096


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    before_s = time.perf_counter()
    work()
    _wait(device)
    return max(1e-9, time.perf_counter() - before_s)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
