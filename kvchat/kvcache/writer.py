"""A thread that writes what it is given, one thing after the other. A disk that is full or fails
costs a line in the log, once until something is written again.
"""

import logging
import queue
import threading
from collections.abc import Callable

from safetensors import SafetensorError

logger = logging.getLogger(__name__)


class Writer:
    """The thread starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failing = False

    @property
    def num_waiting(self) -> int:
        return self._jobs.qsize()

    def post(self, job: Callable[[], None]) -> None:
        """Where no thread can be started the job waits for one that can."""
        self._jobs.put(job)
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="kvchat-disk", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:
                logger.warning("KV cannot be written to disk: %s", error)

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
                self._failing = False
            except (OSError, SafetensorError, MemoryError, RuntimeError) as error:
                if not self._failing:
                    logger.warning("KV could not be written to disk: %s", error)
                self._failing = True
            del job  # it holds what it copied
