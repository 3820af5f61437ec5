"""A text that is read before anything is asked: there for the question, and nothing given up for
it."""

import itertools

import pytest

from kvchat.engine.ahead import CHUNK_TOKENS, ReadingAhead
from kvchat.engine.engine import Engine
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import done, random_ids, request

TEXT = random_ids(700, 5)
QUESTION = random_ids(20, 6)


def nobody() -> bool:
    return False


def read_ahead(engine: Engine, ids: tuple[int, ...] = TEXT, chat: str = "a") -> ReadingAhead:
    ahead = ReadingAhead(engine)
    ahead.want(chat, ids)
    while ahead.go_on(nobody):
        engine.check()
    return ahead


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_a_question_after_it_reuses_all_of_it_and_is_answered_as_ever(
    make_engine: MakeEngine, kind: str
) -> None:
    asked = request((*TEXT, *QUESTION))
    expected = done(list(make_engine(kind).run(asked)))
    engine = make_engine(kind)
    found = read_ahead(engine).of("a")
    assert found is not None
    assert (found.stage, found.done_tokens) == ("done", len(TEXT))
    answer = done(list(engine.run(asked)))
    assert answer.figures.reused_tokens == len(TEXT)
    assert answer.ids == expected.ids


def test_its_blocks_are_idle_from_the_first_chunk_on(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ahead = ReadingAhead(engine)
    ahead.want("a", TEXT)
    for chunk in itertools.count(1):
        going_on = ahead.go_on(nobody)
        engine.pool.check_integrity(0)  # nothing is held
        found = ahead.of("a")
        assert found is not None
        assert found.done_tokens == min(len(TEXT), chunk * CHUNK_TOKENS)
        if found.stage == "done":
            break
        assert going_on
    assert not ahead.go_on(nobody)


def test_who_wants_the_thread_has_it_after_a_chunk(make_engine: MakeEngine) -> None:
    engine, asked = make_engine(), []

    def is_wanted() -> bool:
        return bool(asked)

    ahead = ReadingAhead(engine)
    ahead.want("a", TEXT)
    assert ahead.go_on(is_wanted)
    asked.append("a question")
    assert not ahead.go_on(is_wanted)
    found = ahead.of("a")
    assert found is not None
    assert found.done_tokens == CHUNK_TOKENS
    answer = done(list(engine.run(request((*TEXT, *QUESTION)))))
    assert answer.figures.reused_tokens == CHUNK_TOKENS
    engine.close_text()
    asked.clear()
    ahead.want("a", TEXT)
    while ahead.go_on(is_wanted):
        pass
    assert found.stage == "done"


@pytest.mark.parametrize("spare_tokens", [0, 64, 300, 600, 800])
def test_nothing_is_displaced_where_memory_is_short(
    make_engine: MakeEngine, spare_tokens: int
) -> None:
    """Idle blocks of another chat and the open text stay as they were."""
    other, opened = random_ids(300, 7), random_ids(260, 8)
    plenty = make_engine()
    held = 300 + 260 + 48
    budget = plenty.costs.needed_bytes(held + spare_tokens, 64)
    engine = make_engine(budget=budget)
    done(list(engine.run(request(other, prefill_chunk=64))))
    engine.close_text()
    answered = done(list(engine.run(request(opened, prefill_chunk=64))))
    before = {id(block) for block in engine.pool.index.all()}
    text = engine.room.text
    found = read_ahead(engine).of("a")
    assert found is not None
    assert found.stage == ("no_room" if spare_tokens < 600 else found.stage)
    assert engine.room.text is text
    assert before <= {id(block) for block in engine.pool.index.all()}
    assert engine.pool.device_bytes + engine.loaded.weight_bytes <= budget
    again = done(list(engine.run(request((*opened, *answered.ids, 9), prefill_chunk=64))))
    assert again.figures.reused_tokens >= len(opened)


def test_it_waits_for_room_and_goes_on_when_there_is(make_engine: MakeEngine) -> None:
    engine = make_engine(budget=make_engine().costs.needed_bytes(400, 256))
    ahead = read_ahead(engine)
    found = ahead.of("a")
    assert found is not None
    assert found.stage == "no_room"
    limits = engine.limits
    engine.limits = type(limits)(None, *(getattr(limits, n) for n in ("headroom", "ladder")))
    while ahead.go_on(nobody):
        pass
    assert found.stage == "done"


def test_what_is_wanted_no_more_is_not_read(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ahead = ReadingAhead(engine)
    ahead.want("a", TEXT)
    ahead.want("a", TEXT[:100])  # in its place
    ahead.want("b", random_ids(300, 9))
    ahead.drop("b")
    while ahead.go_on(nobody):
        pass
    assert engine.pool.index.match((*TEXT, 1), engine.pool.storing.floor, 64).num_tokens == 100
    assert ahead.of("b") is None


def test_a_second_chat_about_the_same_text_has_it_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    read_ahead(engine)
    ahead = ReadingAhead(engine)
    ahead.want("b", TEXT)
    assert ahead.go_on(nobody)
    found = ahead.of("b")
    assert found is not None
    assert (found.stage, found.done_tokens) == ("done", len(TEXT))


def test_a_chunk_that_fails_is_tried_a_few_times_and_costs_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    ahead = ReadingAhead(engine)
    ahead.want("a", TEXT)
    step = engine.local.step
    failing = itertools.chain([True, False, True, True, True], itertools.repeat(False))

    def now_and_then(*args: object, **named: object) -> object:
        if next(failing):
            raise MemoryError
        return step(*args, **named)

    monkeypatch.setattr(engine.local, "step", now_and_then)
    for _ in range(8):
        try:
            ahead.go_on(nobody)
        except MemoryError:
            ahead.failed()
        engine.pool.check_integrity(0)
    found = ahead.of("a")
    assert found is not None
    assert found.done_tokens == CHUNK_TOKENS  # given up after three failures in a row
    assert done(list(engine.run(request((*TEXT, *QUESTION))))).figures.reused_tokens == CHUNK_TOKENS
