"""The model that runs here: one forward at a time over a sequence in the pool.

A step either succeeds and is committed, or leaves everything as it was: nothing of it stays in the
cache. Knows no sampling, no planner and no text.
"""

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.arch.spec import ModelSpec
from kvchat.attention.forward import Forward
from kvchat.attention.hf_seam import make_cache
from kvchat.engine.steps import NoWatch, Watch
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.prefix_index import num_common
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.footprint import BLOCK_TOKENS


class Text:
    """One text that the model is reading or writing: its sequence and transformers' view of it.

    `mass`: what attention its blocks got, by place, in the steps that were asked to look.
    """

    def __init__(self, sequence: Sequence, config: Any) -> None:
        self.sequence = sequence
        self.mass: dict[int, float] = {}
        self.forward = Forward(sequence)
        self.cache, self.library = make_cache(self.forward, config)

    @property
    def num_cached(self) -> int:
        return self.sequence.num_cached


class LocalModel:
    """A transformers causal model whose cache is ours. Not shared between threads.

    model: loaded with `attn_implementation="kvchat"`, on `pool.device`.
    """

    def __init__(self, model: nn.Module, spec: ModelSpec, pool: Pool) -> None:
        self.model = model
        self.spec = spec
        self.pool = pool
        paged = {layer for geometry in pool.geometries for layer in geometry.layers}
        self.has_library_layers = len(paged) < len(spec.layers)
        self._kept: Text | None = None
        self.watch: Watch = NoWatch()

    def open(self, token_ids: Ids[int], prefill_chunk: int, *, as_sealed: bool = False) -> Text:
        """A text that begins with what is still in the cache of these ids (`as_sealed`: in no less
        than it would be sealed in now). Raises PoolFull.

        Blocks can be shared and rolled back; the library's own layers can only go on where they
        stopped.
        """
        if self.has_library_layers:
            return self._open_whole(token_ids, prefill_chunk, as_sealed)
        capacity = self._capacity(prefill_chunk)
        return self._text(Sequence.begin(self.pool, token_ids, capacity, as_sealed=as_sealed))

    def _capacity(self, prefill_chunk: int) -> int:
        """Tokens of a hot window while so much is read at a time."""
        return self.pool.storing.hot_tokens + BLOCK_TOKENS + prefill_chunk

    def _text(self, sequence: Sequence) -> Text:
        try:
            return Text(sequence, self._config)
        except BaseException:
            sequence.close()
            raise

    def _open_whole(self, token_ids: Ids[int], prefill_chunk: int, as_sealed: bool) -> Text:
        kept, num_lost = self._kept, 0
        if kept is not None:
            done, serves = kept.sequence.token_ids, kept.sequence.storing == self.pool.storing
            serves = serves and (kept.sequence.is_as_sealed or not as_sealed)
            if serves and len(done) < len(token_ids) and list(token_ids[: len(done)]) == done:
                kept.sequence.resize_hot(self._capacity(prefill_chunk))
                self._kept, kept.sequence.num_lost = None, 0
                return kept
            num_lost = num_common(done, token_ids) if serves else 0
        self.drop_kept()
        sequence = Sequence(self.pool)
        sequence.num_lost = num_lost
        sequence.resize_hot(self._capacity(prefill_chunk))
        return self._text(sequence)

    def close(self, text: Text) -> None:
        """The text is idle: what it holds may be reused, or dropped when memory is short."""
        if self.has_library_layers:
            self.drop_kept()
            self._kept = text
        else:
            text.sequence.close()

    def drop_kept(self) -> int:
        """Lets go of the idle text of a model with layers of the library's own. Returns the bytes
        freed there.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            return 0
        freed = kept.library.nbytes
        kept.sequence.close(keep_tail=False)
        return freed

    @property
    def kept(self) -> Text | None:
        """The idle text of a model with layers of the library's own."""
        return self._kept

    @property
    def kept_bytes(self) -> int:
        """What the library's own layers of the idle text hold."""
        return self._kept.library.nbytes if self._kept is not None else 0

    @property
    def _config(self) -> Any:
        return self.model.config

    def step(self, text: Text, token_ids: Ids[int], *, weighs: bool = False) -> Tensor:
        """Feeds the ids and returns the logits after the last one, [vocab]. Undone whole if it
        fails. `weighs`: looks at what attention each block gets, which takes a little longer.

        Raises what the forward raises, and PoolFull; the caller releases memory outside its except
        block.
        """
        return self._committed(
            text,
            token_ids,
            lambda: self._forward(text, token_ids, 1, weighs=weighs)[0],
            self.watch,
        )

    def score(self, text: Text, token_ids: Ids[int], num_last: int) -> Tensor:
        """The same with the logits after each of the last ids, [num_last, vocab]."""
        return self._committed(
            text, token_ids, lambda: self._forward(text, token_ids, num_last), NoWatch()
        )

    @torch.inference_mode()
    def _committed(
        self, text: Text, token_ids: Ids[int], forward: Callable[[], Tensor], watch: Watch
    ) -> Tensor:
        """What `forward` returns, once the ids are committed: after that nothing may fail."""
        sequence = text.sequence
        before = text.library.save() if self.has_library_layers else None
        try:
            sequence.reserve(len(token_ids))
            watch.begin(len(token_ids), sequence.num_cached + len(token_ids))
            logits = forward()
            seen = text.forward.mass
            mass = text.mass if seen is None else seen.after(text.mass)
            sequence.commit(token_ids)
            text.mass = mass
        except BaseException as error:
            sequence.rollback()
            if before is not None:
                text.library.restore(before)
            watch.failed(error)
            raise
        finally:
            text.forward.end()
        watch.done(logits)
        return logits

    def _forward(
        self, text: Text, token_ids: Ids[int], num_last: int, *, weighs: bool = False
    ) -> Tensor:
        text.forward.begin(weighs=weighs)
        device = self.pool.device
        start = text.num_cached
        ids = torch.tensor([token_ids], dtype=torch.long, device=device)
        positions = torch.arange(start, start + len(token_ids), device=device).unsqueeze(0)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            cache=text.cache,
            use_cache=True,
            logits_to_keep=num_last,
        )
        logits: Tensor = output.logits[0]
        return logits
