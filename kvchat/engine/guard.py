"""The last line: a step that ran out of memory is undone, something is given up, the same step runs
again.

Every shape of running out counts (see device/oom.py). The failed step committed nothing; its
traceback, which keeps tensors alive, is dropped with the except block before memory is released and
anything else is tried. Decides nothing: `rungs` proposes what to give up next, or nothing more.
"""

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

import torch

from kvchat.device.oom import is_out_of_memory, release
from kvchat.kvcache.pool import PoolFull

Result = TypeVar("Result")
Event = TypeVar("Event")


class Exhausted(Exception):
    """Every rung is spent. `needed_bytes`: what the last try was short of, 0 where it is not
    known.
    """

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


def guarded(
    step: Callable[[], Result],
    rungs: Callable[[int, int], Event | None],
    device: torch.device,
) -> Generator[Event, None, Result]:
    """Runs `step` until it succeeds; yields what `rungs(tries, needed_bytes)` did after each
    failure.

    Raises Exhausted once `rungs` returns None, and at once whatever is not a lack of memory.
    """
    tries = 0
    while True:
        needed = _failure(step)
        if isinstance(needed, _Success):
            return needed.result
        release(device)
        tries += 1
        event = rungs(tries, needed)
        if event is None:
            raise Exhausted(needed)
        yield event


class _Success(Generic[Result]):
    def __init__(self, result: Result) -> None:
        self.result = result


def _failure(step: Callable[[], Result]) -> "int | _Success[Result]":
    """The step's success, or the bytes it was short of. The exception does not outlive this
    call.
    """
    try:
        return _Success(step())
    except PoolFull as full:
        return full.needed_bytes
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return 0
