"""Whichever way an answer ends, what it took is back before the next one begins; and a model that
was let go of is gone.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.chat.conversations import Conversations
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Failed, Prefilled, Priority, Token
from kvchat.engine.open import open_engine
from kvchat.engine.worker import Worker
from kvchat.models.load import LoadedModel
from kvchat.models.progress import silent
from kvchat.models.weights import weight_bytes
from kvchat.units import MIB
from tests.chat.test_conversations import answered, ended
from tests.engine.test_engine import done, random_ids, request
from tests.engine.test_injected import Turn
from tests.faults import SHAPES, other_error
from tests.starts import resolve
from tests.tiny import tiny_folder

Start = Callable[..., Conversations]
IDS = random_ids(200, 71)


def tensors_bytes() -> int:
    """Of all storages that any Python object holds."""
    gc.collect()
    held = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    sizes = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in held
        if one.device.type == "cpu"
    }
    return sum(sizes.values())


# --- ways to end ----------------------------------------------------------------------------------


def to_its_end(engine: Engine) -> Iterator[Event]:
    yield from engine.run(request(IDS, max_new_tokens=5, prefill_chunk=64))


def stopped_at(kind: type, count: int) -> Callable[[Engine], Iterator[Event]]:
    def run(engine: Engine) -> Iterator[Event]:
        cancel = threading.Event()
        asked = request(IDS, max_new_tokens=500, prefill_chunk=64, cancel=cancel)
        seen = 0
        if not count:
            cancel.set()
        for event in engine.run(asked):
            seen += isinstance(event, kind)
            if seen == count:
                cancel.set()
            yield event

    return run


def client_gone(engine: Engine) -> Iterator[Event]:
    """Whoever reads the events goes away in mid answer."""
    events = engine.run(request(IDS, max_new_tokens=50, prefill_chunk=64))
    for number, event in enumerate(events):
        yield event
        if number == 6:
            break
    events.close()  # type: ignore[attr-defined]
    engine.close_text()


def failing(error: Callable[[], Exception], at: int) -> Callable[[Engine], Iterator[Event]]:
    def run(engine: Engine) -> Iterator[Event]:
        layer = engine.loaded.model.model.layers[1]
        calls = 0

        def fail(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls >= at:
                raise error()

        hook = layer.register_forward_pre_hook(fail)
        try:
            with suppress(RuntimeError):  # no lack of memory: the worker would end the answer
                yield from engine.run(request(IDS, max_new_tokens=50, prefill_chunk=64))
        finally:
            hook.remove()
        engine.close_text()

    return run


ENDS: dict[str, Callable[[Engine], Iterator[Event]]] = {
    "finished": to_its_end,
    "stopped before anything": stopped_at(Prefilled, 0),
    "stopped in prefill": stopped_at(Prefilled, 2),
    "stopped before the first token": stopped_at(Prefilled, 4),
    "stopped in decode": stopped_at(Token, 4),
    "client gone": client_gone,
    "out of memory in prefill": failing(SHAPES[0], 2),
    "out of memory in decode": failing(SHAPES[4], 9),
    "failed in prefill": failing(other_error, 2),
    "failed in decode": failing(other_error, 9),
}


@pytest.mark.parametrize("kind", ["full", "sliding", "library", "latent"])
def test_whichever_way_an_answer_ends_its_bytes_are_back(
    loaded_as: Callable[[str], LoadedModel], kind: str
) -> None:
    """C02, C28: after each the same small question leaves the same bytes, to the last one."""
    turn = Turn(loaded_as(kind))
    engine = turn.engine

    def small_question() -> tuple[int, int]:
        done(list(engine.run(request(random_ids(20, 72), max_new_tokens=3))))
        engine.close_text()
        engine.local.drop_kept()
        engine.check()
        engine.pool.drop_idle(2**60)
        return engine.pool.device_bytes, tensors_bytes()

    baseline = small_question()
    assert baseline[0] == 0
    for name, run in ENDS.items():
        events = list(run(engine))
        assert events, name
        if "memory" in name:
            assert isinstance(events[-1], Failed), name
        del events
        assert small_question() == baseline, name


def test_twenty_questions_in_chats_of_their_own_take_what_one_takes(start: Start) -> None:
    """C02: the same question each time: its blocks serve again, all else that it took is back."""
    conversations = start(max_new_tokens=8)
    engine = conversations._worker.engine
    assert engine is not None
    taken = []
    for _ in range(20):
        chat = conversations.new_chat()
        answered(conversations.ask(chat, "What does the memory of this chat hold?"))
        taken.append((engine.pool.device_bytes, tensors_bytes()))
    assert len({device for device, _ in taken[1:]}) == 1
    assert max(held for _, held in taken[1:]) - min(held for _, held in taken[1:]) < MIB // 4


def test_a_turn_that_failed_makes_no_later_one_fail(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = start(max_new_tokens=16)
    engine = conversations._worker.engine
    assert engine is not None
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())  # none ends before it fails
    chat, other = conversations.new_chat(), conversations.new_chat()
    answered(conversations.ask(chat, "What does the memory hold?"))
    right = engine.local.step
    for error in (*SHAPES, other_error):
        calls = 0

        def step(*given: Any, error: Callable[[], Exception] = error, **named: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > 8:
                raise error()
            return right(*given, **named)

        engine.local.step = step  # type: ignore[method-assign]
        failed = ended(conversations.ask(chat, "Tell me all of it, from the beginning."))
        assert failed.status == "failed"
        assert failed.error is not None
        assert failed.error.remedy()
        assert failed.text, "what was written is kept"
        assert conversations.history(chat)[-1].reply == failed.text
        engine.local.step = right  # type: ignore[method-assign]
        for one in (chat, other, chat):
            answered(conversations.ask(one, "And now, is it well again?"))
    engine.close_text()
    engine.pool.check_integrity(0)
    assert conversations._store.verify() == []


# --- unloading ------------------------------------------------------------------------------------


def test_models_come_and_go(tmp_path: Path) -> None:
    """C06: five times one model, then another; what each took is back, and an answer that is under
    way is ended first.
    """
    folders = [
        tiny_folder("llama", tmp_path / "a", hidden_size=256, intermediate_size=512),
        tiny_folder("qwen3", tmp_path / "b", hidden_size=256, intermediate_size=512),
    ]
    baseline, sizes = None, []
    for number in range(10):
        settings = resolve(flags={"model": str(folders[number % 2]), "headroom": "1MiB"})
        worker = Worker(lambda *_, s=settings: open_engine(s, tmp_path, silent, None))
        engine = worker.wait_ready(120)
        gone = [weakref.ref(engine.loaded.model), weakref.ref(engine.pool)]
        gone += [weakref.ref(one) for one in engine.loaded.model.parameters()]
        sizes.append(weight_bytes(engine.loaded.model))
        del engine
        for turn in range(2):
            done(list(worker.submit(request(random_ids(100, turn), max_new_tokens=4))))
        answering = worker.submit(
            request(random_ids(50, 9), max_new_tokens=1900, priority=Priority.API)
        )
        next(event for event in answering if isinstance(event, Token))
        worker.close()
        last = [*answering][-1]
        assert isinstance(last, Done)
        assert last.finish_reason == "cancelled"
        del answering, last
        held = tensors_bytes()
        assert [one() for one in gone if one() is not None] == []
        assert worker.engine is None
        if baseline is None:
            baseline = held
        assert held - baseline < 0.05 * min(sizes), number
