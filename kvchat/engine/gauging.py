"""Measures by itself what the device can do at best (device/ceilings.py), once, while nothing is
asked; and again when it is told to, or when an answer was faster than what is known.

A piece of some milliseconds at a time: who wants the thread has it after that piece. It takes no
more than what is free beside all that is held, so that nothing is given up for it; else it waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from kvchat.device.ceilings import Ceilings, measuring, needed_bytes
from kvchat.device.oom import release
from kvchat.engine.engine import Engine
from kvchat.models.ceilings import CeilingsKey, KeptCeilings, keep_ceilings, read_ceilings

# Somebody may be about to ask: it is not the first thing that is done after loading, or an answer.
QUIET_S = 4.0
MOST_FAILURES = 3
Stage = Literal["done", "waiting", "measuring", "given_up"]


class Gauging:
    """`kept` and `stage` may be asked, `again` and `doubt` called, by any thread; all else belongs
    to the one that runs the engine.
    """

    def __init__(
        self, engine: Engine, data_dir: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._data_dir, self._clock = engine, data_dir, clock
        loaded = engine.loaded
        self._key = CeilingsKey.of(loaded.device, loaded.dtype, torch.get_num_threads())
        self.kept: KeptCeilings | None = read_ceilings(data_dir, self._key)
        self._asked = threading.Event()
        self._doubted = threading.Event()
        self._steps: Iterator[Ceilings] | None = None
        self._found: Ceilings | None = None
        self._quiet_since_s = clock()
        self._num_failures = 0

    @property
    def stage(self) -> Stage:
        """`given_up` until it is asked for again."""
        if self._steps is not None:
            return "measuring"
        is_wanted = self._asked.is_set() or self._doubted.is_set()
        if self.kept is not None and not is_wanted:
            return "done"
        return "given_up" if self._num_failures >= MOST_FAILURES else "waiting"

    def again(self) -> None:
        """What is known is measured anew as soon as nothing is asked."""
        self._num_failures = 0
        self._asked.set()

    def doubt(self) -> None:
        """An answer was faster than what is known, which was measured beside other programs then:
        measured anew when it is quiet. Whichever is better is kept: neither can be too high.
        """
        self._doubted.set()

    def rest(self) -> None:
        """Somebody asks something: what was begun is begun anew when it is quiet again."""
        self._steps = None
        self._quiet_since_s = self._clock()

    def go_on(self) -> bool:
        """Does a piece of it; whether there is more to be done at once. Raises what allocating
        raises, and OSError: then call `failed`.
        """
        stage, quiet_s = self.stage, self._clock() - self._quiet_since_s
        if stage in ("done", "given_up") or (quiet_s < QUIET_S and not self._asked.is_set()):
            return False
        if self._steps is None:
            self._steps = self._begun()
        if self._steps is None:
            return False
        found = next(self._steps, None)
        if found is not None:
            self._found = found
            return True
        self._steps = None
        if self._found is not None:
            self.kept = keep_ceilings(self._data_dir, self._key, self._best(self._found))
        self._asked.clear()
        self._doubted.clear()
        release(self._engine.loaded.device)
        return False

    def _best(self, found: Ceilings) -> Ceilings:
        if self.kept is None or self._asked.is_set():
            return found
        known = self.kept.ceilings
        return Ceilings(
            max(found.bytes_per_s, known.bytes_per_s), max(found.flops_per_s, known.flops_per_s)
        )

    def failed(self) -> None:
        """After an error; call it outside of the `except` block."""
        self._num_failures += 1
        self._steps = None
        release(self._engine.loaded.device)

    def _begun(self) -> Iterator[Ceilings] | None:
        loaded, now = self._engine.loaded, self._engine.room.snapshot()
        needed = needed_bytes(loaded.device, loaded.dtype)
        weights = _weights(loaded.model, loaded.device)
        if not weights or needed > now.allowed_bytes - now.own_bytes:
            return None
        return measuring(weights, loaded.dtype)


def _weights(model: torch.nn.Module, device: torch.device) -> list[Tensor]:
    """Plain tensors only: what a quantizing library wraps is read by its own means."""
    found = (*model.parameters(), *model.buffers())
    plain = (torch.Tensor, torch.nn.Parameter)
    return [one.data for one in found if type(one) in plain and one.device.type == device.type]
