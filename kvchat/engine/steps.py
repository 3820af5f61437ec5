"""What the engine learns of its own steps: how much each took, where the device can tell, and which
ran out of memory.

Called around every forward, so it costs microseconds and waits for nothing: chunks are measured
each, decode steps once a block or where their length is new. A step that leaves more behind than
its logits set something up (a library's workspace, a table), and says nothing of those that come.
Decides nothing: the figures are memory/calibrate.py's.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from kvchat.device.oom import is_out_of_memory
from kvchat.device.peak import Peak
from kvchat.memory.calibrate import Calibration, Slot, Step, slot_of
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.planner.costs import Costs


class Watch(Protocol):
    """What `LocalModel` tells of each step: first `begin`, then `done` or `failed`."""

    def begin(self, chunk_tokens: int, context_tokens: int) -> None: ...
    def done(self, logits: Tensor) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class NoWatch:
    """Nobody wants to know."""

    def begin(self, chunk_tokens: int, context_tokens: int) -> None: ...
    def done(self, logits: Tensor) -> None: ...
    def failed(self, error: BaseException) -> None: ...


# torch's allocators round sizes up to this.
_ROUNDED_BYTES = 512


class StepWatch:
    """`costs` gives those that plan now, `learned` takes a new calibration for them. `peak` None:
    nothing is measured here, and figures stay estimates. `grows`: some layers grow in each step.
    """

    def __init__(
        self,
        costs: Callable[[], Costs],
        learned: Callable[[Calibration], None],
        peak: Peak | None,
        grows: bool = False,
    ) -> None:
        self._costs, self._learned, self._peak = costs, learned, peak
        self._grows = grows
        self._size: tuple[int, int] | None = None
        self._measures = False
        self._seen: set[Slot] = set()

    def begin(self, chunk_tokens: int, context_tokens: int) -> None:
        self._size = (chunk_tokens, context_tokens)
        self._measures = self._peak is not None and (
            chunk_tokens > 1
            or context_tokens % BLOCK_TOKENS == 0
            or slot_of(chunk_tokens, context_tokens) not in self._seen
        )
        if self._measures and self._peak is not None:
            self._peak.begin()

    def done(self, logits: Tensor) -> None:
        size, self._size = self._size, None
        if size is None:
            return
        costs = self._costs()
        before = costs.calibration
        taken = self._taken(logits)
        if taken is None:
            after = before.after_success(*size)
        else:
            self._seen.add(slot_of(*size))
            after = before.with_step(Step(*size, costs.estimated_activations(*size), taken))
        if after is not before:
            self._learned(after)

    def _taken(self, logits: Tensor) -> int | None:
        """Bytes of the step that was just done; None where it was not measured, or stands for
        itself only.
        """
        if self._peak is None or not self._measures:
            return None
        taken = self._peak.end()
        usual = logits.untyped_storage().nbytes() + _ROUNDED_BYTES
        return taken.peak_bytes if self._grows or taken.left_bytes <= usual else None

    def failed(self, error: BaseException) -> None:
        size, self._size = self._size, None
        if size is not None and is_out_of_memory(error):
            costs = self._costs()
            estimated = costs.estimated_activations(*size)
            self._learned(costs.calibration.with_shortage(*size, estimated))
