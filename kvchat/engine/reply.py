"""The reply being made: what was asked for, and how far it has come."""

from dataclasses import dataclass, field

from kvchat.engine.detokenize import Detokenizer
from kvchat.engine.events import Request


@dataclass(slots=True)
class Reply:
    """`prefill_chunk`: tokens to be read at a time; it may shrink while the prompt is read.
    `num_chunks`: steps in which it was read; `kv_bytes`: of its text when the first token came.
    """

    request: Request
    detokenizer: Detokenizer
    started_s: float
    prefill_chunk: int
    ids: list[int] = field(default_factory=list)
    reused_tokens: int = 0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    num_chunks: int = 0
    kv_bytes: int = 0

    @property
    def chunk_tokens(self) -> int:
        """For a short prompt, no more room is taken than it needs."""
        return min(self.prefill_chunk, len(self.request.prompt_ids))
