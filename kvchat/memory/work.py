"""What a forward has to read and compute at least, so that what a machine achieved can be told.

    a decode step reads    the weights of its layers and of the head, and all KV that it attends to
    prefill computes       2 flops a parameter of its layers and token, the head once a step, and
                           2 * heads * (key_dim + value_dim) flops for each pair of a token and one
                           that it attends to, in each layer

The roofline model (Williams, Waterman and Patterson, 2009): whatever the kernels do beside that is
overhead, and lowers what is achieved. Pure arithmetic.
"""

from dataclasses import dataclass

from kvchat.arch.spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class Work:
    """Of one model, for one token. `step_weight_bytes`: weights that any step reads, which are all
    but tables that are looked up, and of experts the share that is active. `token_params`:
    parameters that each token is multiplied with; `head_params`: those of the head.
    """

    step_weight_bytes: int
    token_params: int
    head_params: int


def attended_pairs(start: int, stop: int, window: int | None = None) -> int:
    """Sum over the positions p in [start, stop) of min(p + 1, window)."""
    growing_stop = stop if window is None else min(stop, max(start, window))
    growing = (growing_stop - start) * (start + growing_stop + 1) // 2
    return growing + (stop - growing_stop) * (window or 0)


def prefill_flops(spec: ModelSpec, work: Work, start: int, stop: int, num_steps: int) -> int:
    """Of reading the tokens [start, stop) of a text in so many steps, each of which ends in the
    logits of one token.
    """
    layers = sum(_attention_flops(spec, layer, start, stop) for layer in spec.layers)
    return 2 * work.token_params * (stop - start) + 2 * work.head_params * num_steps + layers


def _attention_flops(spec: ModelSpec, layer: LayerSpec, start: int, stop: int) -> int:
    if layer.kind in ("recurrent", "none"):
        return 0
    pairs = attended_pairs(start, stop, layer.window)
    return 2 * spec.num_query_heads * (layer.key_dim + layer.value_dim) * pairs


def decode_bytes(work: Work, num_steps: int, kv_before_bytes: int, kv_after_bytes: int) -> int:
    """num_steps * (weights + KV in the middle): the text grows evenly from one to the other."""
    return num_steps * (work.step_weight_bytes + (kv_before_bytes + kv_after_bytes) // 2)
