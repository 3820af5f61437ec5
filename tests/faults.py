"""Memory that runs out on demand: in every shape in which that is said, at any call of torch or of
our own allocations; and a record of what was done to a text, to do the same again undisturbed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvchat.engine.engine import Engine
from kvchat.kvcache.blocks import Block
from kvchat.memory.formats import FormatPair

SHAPES: tuple[Callable[[], Exception], ...] = (
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: RuntimeError("CUDA driver error: out of memory"),
    lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    lambda: RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED, please report a bug"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
    MemoryError,
)
RecordFaults = Callable[[str, object], None]  # pytest's `record_property`


def other_error() -> Exception:
    """What is no lack of memory."""
    return RuntimeError("size mismatch, m1: [2 x 3], m2: [4 x 5]")


class Failing(TorchDispatchMode):
    """Calls of torch from the n-th on fail, `times` of them; each in the n-th shape, by turns, or
    with the error that is given. `num_failed`: how many did.
    """

    def __init__(self, at: int, times: int = 1, error: Exception | None = None) -> None:
        super().__init__()
        self.at, self.times, self.error = at, times, error
        self.calls = self.num_failed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.at <= self.calls < self.at + self.times:
            self.num_failed += 1
            raise self.error or SHAPES[self.at % len(SHAPES)]()
        return func(*args, **(kwargs or {}))


@contextmanager
def failing_calls(
    owner: Any, names: tuple[str, ...], at: int, times: int = 1
) -> Iterator[Counter[str]]:
    """The same for calls of functions of our own, counted together; `failed` counts those that
    did, `calls` all.
    """
    found: Counter[str] = Counter()

    def failing(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            found["calls"] += 1
            if at <= found["calls"] < at + times:
                found["failed"] += 1
                raise SHAPES[at % len(SHAPES)]()
            return right(*args, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, failing(getattr(owner, name)))
        yield found


MOVES = ("requantize", "raise_block", "offload", "bring_back")


class Recorder:
    """What an engine did to the text that is open: its steps, the logits after each, and which
    blocks were stored otherwise or moved before each.
    """

    def __init__(self, engine: Engine) -> None:
        self.logits: list[Tensor] = []
        self.done: list[tuple[int, str, int, int, FormatPair | None]] = []
        self._engine = engine
        self._step = engine.local.step
        engine.local.step = self.step  # type: ignore[method-assign]
        for name in MOVES:
            setattr(engine.pool, name, self._recorded(name, getattr(engine.pool, name)))

    def step(self, text: Any, ids: Any, **named: Any) -> Tensor:
        logits = self._step(text, ids, **named)
        self.logits.append(logits)
        return logits

    def _recorded(self, name: str, right: Callable[..., int]) -> Callable[..., int]:
        def call(block: Block, *args: Any, **named: Any) -> int:
            found = right(block, *args, **named)
            if block.ref_count:
                pair = args[0] if args else None
                self.done.append((len(self.logits), name, block.group, block.depth, pair))
            return found

        return call

    def repeat(self, engine: Engine) -> "Recorder":
        """Makes another engine do the same to the same blocks before the same steps."""
        again = Recorder(engine)
        record, right = engine.local.step, list(self.done)

        def step(text: Any, ids: Any, **named: Any) -> Tensor:
            while right and right[0][0] == len(again.logits):
                _, name, group, depth, pair = right.pop(0)
                block = text.sequence.tables[group][depth]
                getattr(engine.pool, name)(block, *([] if pair is None else [pair]))
            return record(text, ids, **named)

        engine.local.step = step  # type: ignore[method-assign]
        return again


def assert_same_logits(found: list[Tensor], expected: list[Tensor], where: object) -> None:
    """Bit by bit, step by step."""
    assert len(found) == len(expected), where
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, other), (where, number)


def count_faults(record: RecordFaults, kind: str, survived: int) -> None:
    """So many were injected and survived: told at the end of the run (tests/conftest.py)."""
    record("faults", (kind, survived))
