"""Peaks of steps through the Triton kernels, in Triton's interpreter on the CPU: run in a process
of its own, since the interpreter has to be chosen before triton is imported.
"""

from typing import Any


def peaks(name: str, chunk: int, num_tokens: int, stored: str) -> list[tuple[int, int, int, int]]:
    """Chunk, context, estimate for a card whose kernels read in place, and the measured peak of
    each step of reading and of a few decode steps; what stays beside the logits is counted too.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes
    from triton.runtime.interpreter import GridExecutor

    from kvchat.engine.local import LocalModel
    from kvchat.kvcache.blocks import geometries
    from kvchat.kvcache.pool import Pool, Storing
    from kvchat.memory.activations import activation_bytes
    from kvchat.memory.formats import FormatPair
    from tests.memory.live import LivePeak
    from tests.memory.test_activations import model_of

    launch = GridExecutor.__call__

    def unseen(*args: Any, **named: Any) -> Any:
        """The interpreter copies what a kernel is given; a card does not."""
        with _disable_current_modes():
            return launch(*args, **named)

    GridExecutor.__call__ = unseen
    dtype = torch.float16
    spec, model = model_of(name, dtype)
    local = LocalModel(model, spec, Pool(geometries(spec, dtype), torch.device("cpu"), b"root"))
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored), 64)
    text = local.open([5], chunk)
    assert all(text.forward.on_card)
    found = []

    class Watch:
        def begin(self, chunk_tokens: int, context_tokens: int) -> None:
            self.size, self.peak = (chunk_tokens, context_tokens), LivePeak()
            self.peak.__enter__()

        def done(self, logits: Any) -> None:
            self.peak.__exit__(None, None, None)
            estimate = activation_bytes(spec, *self.size, dtype.itemsize, "triton")
            found.append((*self.size, estimate, self.peak.peak_bytes))

        def failed(self, error: BaseException) -> None:
            self.peak.__exit__(None, None, None)

    local.watch = Watch()
    for start in range(0, num_tokens, chunk):
        local.step(text, [7] * min(chunk, num_tokens - start))
    for _ in range(3):
        local.step(text, [9])
    return found
