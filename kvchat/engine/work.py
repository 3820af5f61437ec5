"""What of a loaded model every step reads and multiplies with, counted on its own modules.

Tables that are looked up are not read: a step takes one row of them. Where the head is tied to
such a table, it is read as the head. Of experts the share counts that a token is sent to. Knows no
cache.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from kvchat.memory.work import Work

_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def work_of(model: nn.Module, weight_bytes: int) -> Work:
    """`weight_bytes`: of all that the model holds, as it was measured."""
    head = _head(model)
    share = _active_share(getattr(model, "config", None))
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    looked_up = sum(_bytes(one) for one in tables if one is not head)
    token_params, resting_bytes = 0.0, 0.0
    for name, weight in _multiplied(model):
        if weight is head or any(weight is one for one in tables):
            continue
        part = share if ".experts." in f".{name}" else 1.0
        token_params += part * weight.numel()
        resting_bytes += (1.0 - part) * _bytes(weight)
    return Work(
        max(0, weight_bytes - looked_up - int(resting_bytes)),
        int(token_params),
        head.numel() if head is not None else 0,
    )


def _head(model: nn.Module) -> Tensor | None:
    found: Any = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(found, "weight", None)
    return weight if isinstance(weight, Tensor) else None


def _multiplied(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights of two dimensions or more; those of int8 stand as buffers or as parameters."""
    seen: set[int] = set()
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.ndim >= 2 and id(weight) not in seen:
            seen.add(id(weight))
            yield name, weight


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()


def _active_share(config: Any) -> float:
    """Of the experts those that a token is sent to; 1 where there are none."""
    per_token = next((n for name in _PER_TOKEN if (n := getattr(config, name, None))), None)
    of_all = next((n for name in _EXPERTS if (n := getattr(config, name, None))), None)
    return min(1.0, per_token / of_all) if per_token and of_all else 1.0
