"""What a reply cost, once it is complete: from what the reply counted and what its text holds."""

from kvchat.arch.spec import ModelSpec
from kvchat.engine.events import Figures
from kvchat.engine.local import Text
from kvchat.engine.reply import Reply
from kvchat.kvcache.frame import held_bytes
from kvchat.memory.work import Work, decode_bytes, prefill_flops


def text_bytes(text: Text) -> int:
    """All KV of a text, wherever it lies: what a decode step attends to."""
    sequence = text.sequence
    paged = (held_bytes(sequence, 0, text.num_cached, tier) for tier in ("device", "host"))
    return sum(sum(one.values()) for one in paged) + text.library.nbytes


def figures_of(reply: Reply, text: Text, spec: ModelSpec, work: Work) -> Figures:
    last = reply.request.spans[-1] if reply.request.spans else None
    held = held_bytes(text.sequence, last.start if last is not None else 0, text.num_cached)
    read_to = min(text.num_cached, len(reply.request.prompt_ids))
    steps = max(0, len(reply.ids) - 1)  # the first token comes out of the prefill
    return Figures(
        prompt_tokens=len(reply.request.prompt_ids),
        reply_tokens=len(reply.ids),
        reused_tokens=reply.reused_tokens,
        prefill_s=reply.prefill_s,
        time_to_first_token_s=reply.first_token_s,
        decode_s=reply.decode_s,
        bytes=sum(held.values()),
        formats=held,
        prefill_flops=prefill_flops(spec, work, reply.reused_tokens, read_to, reply.num_chunks),
        decode_bytes=decode_bytes(work, steps, reply.kv_bytes, text_bytes(text)),
    )
