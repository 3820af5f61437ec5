"""Threads that answers are made on: one each, kept for the next answer once it has ended, since a
computer that is short of memory may refuse a new one.
"""

import queue
import threading
from collections.abc import Callable

from kvchat.errors import RequestError

MOST_IDLE = 4  # further ones end


class Threads:
    """No job waits for another, except where the computer refuses a thread: then for one that is
    through. Jobs raise nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_idle = 0
        self._most_idle = MOST_IDLE

    def run(self, job: Callable[[], None]) -> None:
        """Returns at once. Raises RequestError where there is no thread and none can be had."""
        with self._lock:
            if self._num_idle <= 0:
                self._start()
            else:
                self._num_idle -= 1
            self._jobs.put(job)

    def close(self) -> None:
        """Keeps none any more: those that wait for a job end, the others after theirs."""
        with self._lock:
            self._most_idle = 0
            while self._num_idle > 0:
                self._num_idle -= 1
                self._jobs.put(lambda: None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if self._num_threads == 0:
                raise RequestError("no_thread") from None
            self._num_idle -= 1  # owed: the next that is through takes the job
            return
        self._num_threads += 1

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                if self._num_idle >= self._most_idle:
                    self._num_threads -= 1
                    return
                self._num_idle += 1
