"""What the planner admits, the engine makes: at exactly the bytes that a text is said to need."""

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Took
from tests.engine.test_engine import MakeEngine, done, random_ids, request

NOTHING_LOST = ("drop_idle", "drop_idle_tails", "read_again")


def used_bytes(engine: Engine) -> int:
    return (
        engine.loaded.weight_bytes + engine.pool.device_bytes + engine.room.snapshot().library_bytes
    )


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        ("llama", 32),
        ("llama", 512),
        ("gemma3", 64),
        pytest.param("llama", 64, marks=pytest.mark.slow),
        pytest.param("gemma3", 32, marks=pytest.mark.slow),
        pytest.param("gemma3", 512, marks=pytest.mark.slow),
    ],
)
def test_what_is_admitted_is_made_within_its_bytes(
    make_engine: MakeEngine, kind: str, chunk: int
) -> None:
    """Short and long prompts, also where the whole chunk alone would not fit; idle texts beside."""
    plenty = make_engine(kind)
    for number, (num_prompt, num_reply) in enumerate(
        [(5, 100), (60, 70), (64, 64), (100, 30), (129, 200), (400, 10), (650, 60)]
    ):
        budget = plenty.costs.needed_bytes(num_prompt + num_reply, chunk)
        engine = make_engine(kind, budget=budget)
        for seed in (number, number + 50, number):
            ids = random_ids(num_prompt, seed)
            asked = request(ids, max_new_tokens=num_reply, prefill_chunk=chunk)
            for event in engine.run(asked):
                assert used_bytes(engine) <= budget
                assert not isinstance(event, Took) or event.entry["code"] in NOTHING_LOST
            assert isinstance(event, Done), (num_prompt, num_reply, event)
        engine.close_text()
        engine.pool.check_integrity(0)


def test_a_prompt_shorter_than_a_chunk_is_as_without_a_budget(make_engine: MakeEngine) -> None:
    ids = random_ids(70)
    expected = done(list(make_engine().run(request(ids))))
    engine = make_engine(budget=make_engine().costs.needed_bytes(len(ids) + 24, 512))
    assert done(list(engine.run(request(ids)))).ids == expected.ids


def test_a_short_rest_after_a_long_prefix_fits_too(make_engine: MakeEngine) -> None:
    """Too short to be read in smaller chunks, in a budget that holds no whole chunk."""
    for num_new in (3, 20, 50, 63):
        ids = random_ids(70 + num_new, num_new)
        budget = make_engine().costs.needed_bytes(len(ids) + 60, 512)
        engine = make_engine(budget=budget)
        done(list(engine.run(request(ids[:70], max_new_tokens=2))))
        second = done(list(engine.run(request(ids, max_new_tokens=60))))
        assert second.figures.reused_tokens == 70
