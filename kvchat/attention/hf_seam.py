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
from kvchat.attention.forward import Forward
from kvchat.attention.triton_paged.standing import Room
from kvchat.attention.triton_paged.table import LayerTable
from kvchat.errors import ModelError

NAME = "kvchat"
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
    if kv.forward.mass is not None and kv.window is None:
        kv.forward.mass.add(query, kv, scoring)
    return attend(query, kv, scoring), None


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
        self.on_card = forward.on_card[group]
        self.is_sliding = self.window is not None
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [1, kv_heads, C, dim] into the reserved places of the hot window."""
        live = kwargs.get("kwargs")
        if live is None:
            raise ModelError("model_no_kwargs")
        self.forward.write(self.group, self.layer, key_states[0], value_states[0])
        live[_KEY] = self
        return key_states, value_states

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        keys, values = self.forward.new(self.group)
        return keys[self.layer], values[self.layer]

    @property
    def table(self) -> LayerTable:
        assert self.forward.tables is not None
        return self.forward.tables.of(self.group, self.layer)

    def room(self, query: Tensor, rotated: torch.dtype) -> Room:
        assert self.forward.tables is not None
        return self.forward.tables.room(query, rotated, self.table)

    def lying(self) -> Lying:
        return self.forward.lying(self.group)

    def scratch(self, num_floats: int) -> Tensor:
        return self.forward.scratch(num_floats)

    def gathered(self) -> tuple[Tensor, Tensor]:
        return self.forward.gathered(self.group, self.layer)

    def tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.forward.tiles(self.group, self.layer)

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
