"""Counts what a forward keeps alive: the bytes of every storage that an operation made and
somebody holds.

torch does not count the CPU's memory, so the peak is read from the operations themselves. What a
fused
kernel takes and gives back inside one operation is not seen.
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LivePeak(TorchDispatchMode):
    """Inside the `with`, `peak_bytes` is the most that was alive at once of what was made inside
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {id(s) for s in map(_storage, tree_leaves((args, kwargs))) if s is not None}
        result = func(*args, **(kwargs or {}))
        for storage in map(_storage, tree_leaves(result)):
            if storage is not None and id(storage) not in given and id(storage) not in self._known:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def gone(_: object) -> None:
            self.live_bytes -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def _storage(leaf: Any) -> torch.UntypedStorage | None:
    return leaf.untyped_storage() if isinstance(leaf, torch.Tensor) else None
