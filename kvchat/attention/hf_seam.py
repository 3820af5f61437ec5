"""Where transformers' models meet our cache: one cache layer a paged layer, one attention function,
one mask.

A model calls `cache.update(k, v, layer, kwargs=kwargs)` with the forward's live keyword dict; the
cache layer writes k and v into the hot window and leaves itself in that dict, and the attention
function registered under our name finds it there. Masks are made by position in the backends, so
the mask function returns None. The only place that touches transformers' cache and attention
registries. Tried on transformers 5.24.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from kvchat.attention.backend import Lying, Scoring
from kvchat.attention.choose import choose
from kvchat.attention.flash import attend_joined
from kvchat.errors import ModelError
from kvchat.kvcache.blocks import Run, shape_of
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS

NAME = "kvchat"
READ_BLOCKS = 16  # dequantised at a time, so that what this takes stays small
_KEY = "kvchat_kv"


def register() -> None:
    """Makes `attn_implementation="kvchat"` known to transformers. Safe to call again."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def use_library_attention(model: Any) -> Iterator[None]:
    """For comparison: the library's own attention for a while, for its own cache and loop."""
    with _using(model, "sdpa", NAME):
        yield


@contextmanager
def use_our_attention(model: Any) -> Iterator[None]:
    """Inside of that: ours again for a while."""
    with _using(model, NAME, "sdpa"):
        yield


@contextmanager
def _using(model: Any, implementation: str, afterwards: str) -> Iterator[None]:
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(afterwards)


def _mask(*_args: object, use_vmap: bool = False, **_kwargs: object) -> None:
    """No mask tensor: the backends mask by position. A model with rules of its own is refused."""
    if use_vmap:
        raise ModelError("model_own_mask")


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function. query [1, heads, C, D] -> ([1, C, heads, Dv], None)."""
    if attention_mask is not None or kwargs.get("position_bias") is not None:
        raise ModelError("model_own_mask")
    scoring = Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    kv: PagedLayer | None = kwargs.get(_KEY)
    if kv is None:
        return attend_joined(query, key[0], value[0], scoring, sliding_window), None
    if kv.window != sliding_window and sliding_window is not None:
        raise ModelError("model_window_differs", expected=kv.window, found=sliding_window)
    attend = choose(query, kv, scoring)
    return attend(query, kv, scoring), None


class Forward:
    """What the paged layers share during one forward: views of all layers made at once, one
    workspace.

    new[g] and hot[g]: keys and values, a tuple of one view a layer. Making them here, a handful of
    calls a group instead of a dozen a layer, is worth 5 % of a decode step on one CPU thread.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.runs: list[list[Run]] = []
        self.new: list[_Views] = []
        self.hot: list[_Views] = []
        self.num_hot: list[int] = []
        self._lying: dict[int, Lying] = {}
        self._workspace: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch: Tensor | None = None

    def begin(self) -> None:
        """After `sequence.reserve`: fixes what all layers of this forward read and write."""
        sequence = self.sequence
        committed, stop = sequence.num_hot, sequence.num_hot + sequence.num_new
        for group, geometry in enumerate(sequence.pool.geometries):
            skip = max(0, geometry.first_visible(sequence.num_cached) - sequence.start)
            self.runs.append(sequence.runs(group))
            self.new.append(_by_layer(sequence.hot_views(group, committed, stop)))
            self.hot.append(_by_layer(sequence.hot_views(group, skip, stop)))
            self.num_hot.append(committed - skip)

    def workspace(self, group: int, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Room for one layer's prefix, [kv_heads, tokens, dim], the same for each of the group."""
        found = self._workspace.get(group)
        if found is None:
            geometry = self.sequence.pool.geometries[group]
            device = self.sequence.pool.device
            shape = (geometry.num_kv_heads, num_tokens)
            found = (
                torch.empty(*shape, geometry.key_dim, dtype=geometry.dtype, device=device),
                torch.empty(*shape, geometry.value_dim, dtype=geometry.dtype, device=device),
            )
            self._workspace[group] = found
        return found

    def lying(self, group: int) -> Lying:
        """Where the group's layers lie, the same for all of them."""
        found = self._lying.get(group)
        if found is None:
            sequence = self.sequence
            geometry, hot = sequence.pool.geometries[group], sequence.hot[group]
            lists = [(one, shape_of(geometry, one.pair)) for one in sequence.lists(group)]
            seen = sequence.num_hot - self.num_hot[group]
            keys, values = sequence.hot_addresses(group, seen)
            num_hot = self.num_hot[group] + sequence.num_new
            num_sealed = sum(len(one.addresses) * BLOCK_TOKENS - one.skip for one, _ in lists)
            found = self._lying[group] = Lying(
                lists=lists,
                hot_keys=keys,
                hot_values=values,
                hot_layer_bytes=geometry.num_kv_heads * geometry.head_bytes(hot.num_tokens),
                hot_head_bytes=geometry.head_bytes(hot.num_tokens),
                num_hot=num_hot,
                num_tokens=num_sealed + num_hot,
                value_dim=geometry.value_dim,
            )
        return found

    def scratch(self, num_floats: int) -> Tensor:
        if self._scratch is None or self._scratch.shape[0] < num_floats:
            device = self.sequence.pool.device
            self._scratch = torch.empty(num_floats, dtype=torch.float32, device=device)
        return self._scratch

    def end(self) -> None:
        """Lets go of the workspace and of the views."""
        for views in (self.runs, self.new, self.hot, self.num_hot, self._lying, self._workspace):
            views.clear()
        self._scratch = None


_Views = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


def _by_layer(views: tuple[Tensor, Tensor]) -> _Views:
    keys, values = views
    return keys.unbind(0), values.unbind(0)


class PagedLayer(CacheLayerMixin):
    """One layer's window into the pool; `backend.LayerKV` for attention, a cache layer for
    transformers.

    `layer` counts within the group.
    """

    is_sliding = False

    def __init__(self, forward: Forward, group: int, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forward, self.group, self.layer = forward, group, layer
        geometry = forward.sequence.pool.geometries[group]
        self.window = geometry.window
        self.num_kv_heads = geometry.num_kv_heads
        self.value_dim = geometry.value_dim
        self.is_sliding = self.window is not None
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [1, kv_heads, C, dim] into the reserved places of the hot window."""
        live = kwargs.get("kwargs")
        if live is None:
            raise ModelError("model_no_kwargs")
        keys, values = self.new
        keys.copy_(key_states[0])
        values.copy_(value_states[0])
        live[_KEY] = self
        return key_states, value_states

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        keys, values = self.forward.new[self.group]
        return keys[self.layer], values[self.layer]

    def lying(self) -> Lying:
        return self.forward.lying(self.group)

    def scratch(self, num_floats: int) -> Tensor:
        return self.forward.scratch(num_floats)

    def gathered(self) -> tuple[Tensor, Tensor]:
        forward, layer = self.forward, self.layer
        _, skip = forward.sequence.first_seen(self.group)
        runs = forward.runs[self.group]
        num_hot = forward.num_hot[self.group]
        num_sealed = sum(run.num_blocks for run in runs) * BLOCK_TOKENS
        to_keys, to_values = forward.workspace(self.group, num_sealed + num_hot)
        done = 0
        for run in runs:
            for start in range(0, run.num_blocks, READ_BLOCKS):
                found = run.read(layer, start, start + READ_BLOCKS)
                num_blocks = found[0].shape[0]
                after = done + num_blocks * BLOCK_TOKENS
                for to, part in zip((to_keys, to_values), found, strict=True):
                    to[:, done:after].unflatten(1, (num_blocks, -1)).copy_(part.transpose(0, 1))
                done = after
        hot_keys, hot_values = forward.hot[self.group]
        to_keys[:, done:] = hot_keys[layer][:, :num_hot]
        to_values[:, done:] = hot_values[layer][:, :num_hot]
        return to_keys[:, skip:], to_values[:, skip:]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The pool allocates before the forward; nothing is left to do."""

    def get_seq_length(self) -> int:
        return self.forward.sequence.num_cached

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class LibraryLayers:
    """The layers of a model that stay the library's own (latent, recurrent, shared), and their
    undo.
    """

    def __init__(self, layers: dict[int, Any]) -> None:
        self.layers = layers

    @property
    def nbytes(self) -> int:
        """What they hold on the device, each storage once."""
        return sum(
            {
                t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in self._tensors()
            }.values()
        )

    def _tensors(self) -> list[Tensor]:
        return [t for layer in self.layers.values() for t in _tensors_in(vars(layer))]

    def save(self) -> dict[int, dict[str, Any]]:
        """What a step may change. Keys and values grow by concatenation, so their old tensors are
        kept as they
        are; recurrent ones may be overwritten in place and are copied."""
        return {
            i: {k: v if k in ("keys", "values") else _kept(v) for k, v in vars(layer).items()}
            for i, layer in self.layers.items()
        }

    def restore(self, saved: dict[int, dict[str, Any]]) -> None:
        for i, layer in self.layers.items():
            vars(layer).clear()
            vars(layer).update(saved[i])


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one)


def _kept(value: Any) -> Any:
    if isinstance(value, list):
        return [_kept(one) for one in value]
    if isinstance(value, dict):
        return {key: _kept(one) for key, one in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def make_cache(forward: Forward, config: PreTrainedConfig) -> tuple[Cache, LibraryLayers]:
    """transformers' cache of a sequence: our layers where the pool serves, the library's own for
    the rest.
    """
    layers: list[Any] = list(DynamicCache(config=config).layers)
    own = dict(enumerate(layers))
    for group, geometry in enumerate(forward.sequence.pool.geometries):
        for within, layer in enumerate(geometry.layers):
            layers[layer] = PagedLayer(forward, group, within)
            own.pop(layer)
    return Cache(layers=layers), LibraryLayers(own)
