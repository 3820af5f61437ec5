"""The steps of one reply: its prompt read by chunks, then token by token. Before each the room for
it is made, and each runs under the guard.

Generators of events. Knows neither the disk nor what is told of a reply when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvchat.engine.circles import GoingRound
from kvchat.engine.events import Event, FinishReason, Framed, Prefilled, Token
from kvchat.engine.guard import guarded
from kvchat.engine.local import LocalModel, Text
from kvchat.engine.reply import Reply
from kvchat.engine.room import Room
from kvchat.engine.sampling import Sampler

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel


class Computing:
    """`framed` gives a frame where one is due."""

    def __init__(
        self,
        loaded: LoadedModel,
        local: LocalModel,
        room: Room,
        clock: Callable[[], float],
        framed: Callable[[Reply], Iterator[Framed]],
    ) -> None:
        self._local, self._room = local, room
        self._device, self._loaded = loaded.device, loaded
        self._clock, self._framed = clock, framed

    def prefill(self, reply: Reply, text: Text) -> Generator[Event, None, Tensor | None]:
        """Feeds the prompt; returns the logits after it, or None where it was cancelled."""
        ids, logits = reply.request.prompt_ids, None
        while text.num_cached < len(ids):
            if reply.request.cancel.is_set():
                return None
            start = text.num_cached
            chunk = reply.chunk_tokens
            stop = min(len(ids), start + chunk)
            yield from self._room.make(reply, stop, chunk)

            def step(start: int = start) -> Tensor:
                chunk_ids = ids[start : start + reply.chunk_tokens]
                return self._local.step(text, chunk_ids, weighs=self._room.limits.weighs)

            logits = yield from guarded(
                step, self._room.rungs(reply, len(ids) - start), self._device
            )
            reply.num_chunks += 1
            elapsed = self._clock() - reply.started_s
            yield Prefilled(len(ids), text.num_cached, reply.reused_tokens, elapsed)
            yield from self._framed(reply)
        return logits

    def decode(
        self, reply: Reply, text: Text, logits: Tensor
    ) -> Generator[Event, None, FinishReason]:
        request = reply.request
        sampler = Sampler(request.sampling, self._device)
        circles = GoingRound(self._text_of) if request.ends_circles else None
        began = self._clock()
        while True:
            token = yield from self._drawn(reply, sampler, logits)
            reply.ids.append(token)
            before_s, reply.decode_s = reply.decode_s, self._clock() - began
            if len(reply.ids) == 1:
                reply.first_token_s = self._clock() - reply.started_s
            else:
                yield from self._room.paced(reply.decode_s - before_s)
            if token in self._loaded.eos_token_ids:
                return "stop"
            yield Token(token, reply.detokenizer.push(token))
            if reply.detokenizer.stopped:
                return "stop"
            if len(reply.ids) >= request.max_new_tokens:
                return "length"
            if circles is not None and circles.closed(token):
                return "circles"
            if request.cancel.is_set():
                return "cancelled"
            logits = yield from self._next_logits(reply, text, token)
            yield from self._framed(reply)

    def _drawn(self, reply: Reply, sampler: Sampler, logits: Tensor) -> Generator[Event, None, int]:
        """The next id; a draw that ran out of memory is made again with the same random numbers."""
        before: object = None

        def draw() -> int:
            nonlocal before
            if before is None:
                before = sampler.save()
            sampler.restore(before)
            return sampler.draw(logits, self._seen(reply))

        return (yield from guarded(draw, self._room.rungs(reply, 0), self._device))

    def _next_logits(self, reply: Reply, text: Text, token: int) -> Generator[Event, None, Tensor]:
        begins_block = self._room.begins_block()
        if begins_block:
            yield from self._room.at_block(reply)

        def step() -> Tensor:
            return self._local.step(
                text, (token,), weighs=begins_block and self._room.limits.weighs
            )

        return (yield from guarded(step, self._room.rungs(reply, 0), self._device))

    def _text_of(self, token: int) -> str:
        return str(self._loaded.tokenizer.decode([token]))

    def _seen(self, reply: Reply) -> Tensor | None:
        if reply.request.sampling.repetition_penalty == 1.0:
            return None
        return torch.tensor([*reply.request.prompt_ids, *reply.ids])
