"""How far the loading of a model has come, told while it happens, and the way to call it off.

Knows nothing of models: the steps say what they are about to do and what they have done, in bytes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["unpack", "convert", "weights", "prepare"]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """`done_bytes` of the stage's `total_bytes`; 0 of 0 where nothing of it is counted."""

    stage: Stage
    done_bytes: int
    total_bytes: int


def silent(progress: LoadProgress) -> None:
    """For those who do not ask how far it is."""


class Cancelled(BaseException):
    """Loading was called off. Not an Exception: the library must not take it for a bad weight."""


class Report:
    """Tells each step of one loading; told by several threads at once, it tells one at a time."""

    def __init__(
        self, tell: Callable[[LoadProgress], None], cancel: threading.Event | None = None
    ) -> None:
        self._tell = tell
        self._cancel = cancel or threading.Event()
        self._lock = threading.Lock()
        self._stage: Stage = "weights"
        self._done = self._total = 0

    def begin(self, stage: Stage, total_bytes: int) -> None:
        with self._lock:
            self._stage, self._done, self._total = stage, 0, total_bytes
        self.add(0)

    def add(self, num_bytes: int) -> None:
        """Raises Cancelled once the loading was called off."""
        if self._cancel.is_set():
            raise Cancelled
        with self._lock:
            self._done += num_bytes
            self._tell(LoadProgress(self._stage, self._done, self._total))
