"""The device is measured once, in a quiet moment, in little memory; and kept."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kvchat.device import ceilings as device_ceilings
from kvchat.device.ceilings import Ceilings, measuring
from kvchat.engine.engine import Engine
from kvchat.engine.gauging import MOST_FAILURES, QUIET_S, Gauging
from kvchat.models.ceilings import CeilingsKey, keep_ceilings, read_ceilings
from tests.engine.conftest import MakeEngine

KEY = CeilingsKey("a card", "bfloat16", 0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def large_enough(make_engine: MakeEngine) -> Engine:
    engine = make_engine()
    engine.loaded.model.register_buffer("room", torch.rand(2**19))  # a tiny model is too small
    return engine


def gauged(gauging: Gauging, clock: Clock) -> None:
    clock.now_s += QUIET_S
    for _ in range(100):
        if not gauging.go_on():
            return
    raise AssertionError("it does not end")


def test_tensors_are_read_and_the_best_of_all_counts() -> None:
    weights = [torch.rand(2**19), torch.rand(1024, 1024)]
    before = [one.clone() for one in weights]
    found = list(measuring(weights, torch.float32))
    assert found[-1].bytes_per_s > 1e6
    assert found[-1].flops_per_s > 1e6
    for one, later in pairwise(found):
        assert one.bytes_per_s <= later.bytes_per_s
        assert one.flops_per_s <= later.flops_per_s
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))


def test_tensors_that_share_a_storage_are_read_once() -> None:
    whole = torch.rand(2**20)
    assert len(device_ceilings._largest([whole, whole[:5], torch.rand(2)])) == 1


def test_it_is_measured_once_and_known_after_a_restart(
    make_engine: MakeEngine, tmp_path: Path, clock: Clock
) -> None:
    engine = large_enough(make_engine)
    gauging = Gauging(engine, tmp_path, clock)
    assert gauging.stage == "waiting"
    assert not gauging.go_on()  # somebody may be about to ask
    gauged(gauging, clock)
    assert gauging.stage == "done"
    assert gauging.kept is not None
    again = Gauging(engine, tmp_path, clock)
    assert again.stage == "done"
    assert again.kept == gauging.kept
    again.again()
    assert again.stage == "waiting"
    gauged(again, clock)
    assert again.kept is not None
    assert again.kept.at_s >= gauging.kept.at_s


def test_what_an_answer_exceeded_is_measured_again_when_it_is_quiet(
    make_engine: MakeEngine, tmp_path: Path, clock: Clock
) -> None:
    engine = large_enough(make_engine)
    gauging = Gauging(engine, tmp_path, clock)
    for low in (Ceilings(1.0, 1e30), Ceilings(1e30, 1.0)):
        gauging.kept = keep_ceilings(tmp_path, gauging._key, low)
        gauging.rest()
        gauging.doubt()
        assert gauging.stage == "waiting"
        assert not gauging.go_on()  # the person may go on asking
        gauged(gauging, clock)
        assert gauging.stage == "done"
        found = gauging.kept.ceilings
        assert found.bytes_per_s > 1.0
        assert found.flops_per_s > 1.0
        assert max(found.bytes_per_s, found.flops_per_s) == 1e30  # the better one stays
    gauging.again()
    gauged(gauging, clock)
    assert gauging.kept.ceilings.bytes_per_s < 1e30


def test_a_question_in_between_begins_it_anew(
    make_engine: MakeEngine, tmp_path: Path, clock: Clock
) -> None:
    engine = make_engine()
    gauging = Gauging(engine, tmp_path, clock)
    clock.now_s += QUIET_S
    assert gauging.go_on()
    assert gauging.stage == "measuring"
    gauging.rest()
    assert gauging.stage == "waiting"
    assert not gauging.go_on()


def test_where_there_is_no_room_it_waits(
    make_engine: MakeEngine, tmp_path: Path, clock: Clock
) -> None:
    engine = make_engine()
    engine.limits = engine.limits.__class__(engine.loaded.weight_bytes + 2**20, 0, ())
    gauging = Gauging(engine, tmp_path, clock)
    gauged(gauging, clock)
    assert gauging.stage == "waiting"
    assert gauging.kept is None


def test_after_some_failures_it_is_left_alone(
    make_engine: MakeEngine, tmp_path: Path, clock: Clock
) -> None:
    gauging = Gauging(make_engine(), tmp_path, clock)
    for _ in range(MOST_FAILURES):
        gauging.failed()
    assert gauging.stage == "given_up"
    gauging.again()
    assert gauging.stage == "waiting"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1, "keys": []}', '{"version": 1, "keys": {"%s": {}}}']
)
def test_a_file_that_makes_no_sense_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "ceilings.json").write_text(content.replace("%s", str(KEY)))
    assert read_ceilings(tmp_path, KEY) is None
    kept = keep_ceilings(tmp_path, KEY, Ceilings(2.0, 3.0))
    assert read_ceilings(tmp_path, KEY) == kept


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), "fast", None])
def test_figures_that_cannot_be_are_not_taken(tmp_path: Path, rate: object) -> None:
    keep_ceilings(tmp_path, KEY, Ceilings(2.0, 3.0))
    file = tmp_path / "ceilings.json"
    found = json.loads(file.read_text())
    found["keys"][str(KEY)]["bytes_per_s"] = rate
    file.write_text(json.dumps(found))
    assert read_ceilings(tmp_path, KEY) is None
