"""Texts by chance under budgets by chance: what the plan lets in is answered, and answered right.

Prefixes are shared, chunks and budgets change in between, answers are stopped; groups of layers
cannot use each other's places. The tokens are those of an engine with all the room it wants.
"""

import random
from collections.abc import Callable
from functools import cache

import pytest

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Failed, Request, Took
from kvchat.engine.limits import Limits
from kvchat.kvcache import slabs as slabs_module
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.engine.test_injected import loaded_as as loaded_as

CAPACITIES, CHUNKS, REPLIES = (200, 300, 400, 700), (16, 32, 64, 128), (1, 3, 12)


def engine_of(loaded: LoadedModel, budget: int | None = None) -> Engine:
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    return Engine(loaded, FakeProbe([roomy]), Limits(budget, GIB, RUNGS))


class Person:
    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = engine_of(loaded)
        self.texts: list[tuple[int, ...]] = [()]
        self.dropped = self.answered = 0
        self.set_budget()

        @cache
        def undisturbed(ids: tuple[int, ...], num_new: int) -> tuple[int, ...]:
            *_, last = engine_of(loaded).run(Request(ids, (), num_new))
            assert isinstance(last, Done)
            return last.ids

        self.undisturbed = undisturbed

    def set_budget(self) -> None:
        self.capacity, self.chunk = self.chance.choice(CAPACITIES), self.chance.choice(CHUNKS)
        self.budget = self.engine.costs.needed_bytes(self.capacity, self.chunk)
        self.engine.limits = Limits(self.budget, GIB, RUNGS)

    def ids(self, num_new: int) -> tuple[int, ...]:
        """From somewhere in an earlier text on; rarely more than fits."""
        earlier = self.chance.choice(self.texts[-6:])
        start = earlier[: self.chance.randint(0, len(earlier))]
        num_more = self.chance.randint(1, max(1, self.capacity - num_new - len(start)))
        return (*start, *(self.chance.randint(3, 500) for _ in range(num_more)))

    def ask(self) -> None:
        num_new = self.chance.choice(REPLIES)
        ids = self.ids(num_new)
        asked = Request(ids, (), num_new, self.chunk)
        stop_at = self.chance.randint(1, 8) if self.chance.random() < 0.2 else None
        for number, event in enumerate(self.engine.run(asked)):
            assert self.engine.loaded.weight_bytes + self.engine.pool.device_bytes <= self.budget
            self.dropped += isinstance(event, Took)
            if number == stop_at:
                asked.cancel.set()
        expected = self.undisturbed(ids, num_new)
        assert isinstance(event, (Done, Failed))
        assert event.ids == expected[: len(event.ids)]
        if self.engine.costs.needed_bytes(len(ids) + num_new, self.chunk) <= self.budget:
            assert isinstance(event, Done)
            self.answered += 1
        self.texts.append((*ids, *event.ids))
        self.engine.pool.check_integrity()


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("seed", range(5))
def test_what_fits_is_answered(
    loaded_as: Callable[[str], LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    seed: int,
) -> None:
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", 2**15)  # as small as the models
    person = Person(loaded_as(kind), seed)
    for _ in range(25):
        person.ask()
        if person.chance.random() < 0.15:
            person.set_budget()
    assert person.answered > 10
    assert person.dropped > 5
    person.engine.close_text()
    person.engine.pool.check_integrity(0)
    person.engine.pool.drop_idle(2**60)
    assert person.engine.pool.device_bytes == 0
