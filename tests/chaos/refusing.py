"""An allocator that refuses what does not fit, whatever anybody said was free."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kvchat.kvcache.blocks import HotWindow, Slab


@contextmanager
def refusing(fits: Callable[[int], bool]) -> Iterator[None]:
    """The pool's allocations of so many bytes fail where `fits` says no."""

    def checked(right: type, size: Callable[..., int]) -> Callable[..., Any]:
        def make(*args: Any, **named: Any) -> Any:
            if not fits(size(*args)):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return right(*args, **named)

        return make

    with pytest.MonkeyPatch.context() as patch:
        slab = checked(Slab, lambda num_bytes, *_: num_bytes)
        hot = checked(HotWindow, lambda one, num_tokens, _: num_tokens * one.bytes_per_token)
        patch.setattr("kvchat.kvcache.slabs.Slab", slab)
        patch.setattr("kvchat.kvcache.pool.HotWindow", hot)
        yield
