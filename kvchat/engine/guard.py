"""The last line: a step that ran out of memory is undone, something is given up, the same step runs
again.

Every shape of running out counts (see device/oom.py). The failed step committed nothing; its
traceback, which keeps tensors alive, is dropped with the except block before memory is released and
anything else is tried. Decides nothing: `rungs` proposes what to give up next, or nothing more.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from kvchat.device.oom import is_out_of_memory, release
from kvchat.kvcache.pool import PoolFull

Result = TypeVar("Result")
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a failed step lacked: bytes, where the pool could say them, and whether blocks' places
    would not have served.
    """

    needed_bytes: int = 0
    for_hot: bool = False


class Exhausted(Exception):
    """Every rung is spent."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage)
        self.shortage = shortage


def guarded(
    step: Callable[[], Result],
    rungs: Callable[[int, Shortage], Event | None],
    device: torch.device,
) -> Generator[Event, None, Result]:
    """Runs `step` until it succeeds; yields what `rungs(tries, shortage)` did after each failure.

    Raises Exhausted once `rungs` returns None, and at once whatever is not a lack of memory.
    """
    tries = 0
    while True:
        outcome = _outcome(step)
        if isinstance(outcome, _Success):
            return outcome.result
        if not outcome.needed_bytes:  # a full pool is our own count: the device has no less by it
            release(device)
        tries += 1
        event = rungs(tries, outcome)
        if event is None:
            raise Exhausted(outcome)
        yield event


class _Success(Generic[Result]):
    def __init__(self, result: Result) -> None:
        self.result = result


def _outcome(step: Callable[[], Result]) -> "Shortage | _Success[Result]":
    """The step's result, or what it lacked. The exception does not outlive this call."""
    try:
        return _Success(step())
    except PoolFull as full:
        return Shortage(full.needed_bytes, full.for_hot)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Shortage()
