"""What the engine says that it did: never nothing of anything."""

from dataclasses import replace

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.events import Took
from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import FormatPair
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import random_ids, request


def rows_of(engine: Engine, num_tokens: int, seed: int, old: bool = True) -> list[Took]:
    ids = random_ids(num_tokens, seed)
    asked = request(ids, max_new_tokens=70, prefill_chunk=64)
    if old:
        asked = replace(asked, old=((0, num_tokens - 40),))
    return [event for event in engine.run(asked) if isinstance(event, Took)]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("host_quota", [0, 2**18])
def test_no_row_counts_to_nothing(make_engine: MakeEngine, kind: str, host_quota: int) -> None:
    """In little memory, texts long and short by turns: rows that count blocks or tokens count some,
    and where only the newest tokens of an idle text went, that is what is said.
    """
    rungs = ("drop_idle", "shrink_chunk", "requantize", "offload", "evict")
    budget = make_engine(kind).costs.needed_bytes(600, 64)
    engine = make_engine(kind, budget=budget, rungs=rungs)
    pair = FormatPair.parse("fp")
    lower = (FormatPair.parse("int8"), FormatPair.parse("int4"))
    storing = Storing(pair, lower[-1], 64)
    engine.limits = replace(engine.limits, storing=storing, lower=lower, host_quota=host_quota)
    codes: dict[str, int] = {}
    for number in range(24):
        num_tokens = (20, 300, 60, 500)[number % 4]
        for took in rows_of(engine, num_tokens, number % 7):
            entry = took.entry
            codes[entry["code"]] = codes.get(entry["code"], 0) + 1
            counts = {name: n for name, n in entry["arguments"].items() if isinstance(n, int)}
            assert 0 not in counts.values(), entry
            if entry["code"] == "drop_idle_tails":
                assert entry["bytes_measured"] > 0
                assert entry["arguments"] == {}
    assert codes.get("drop_idle", 0) + codes.get("drop_idle_to_host", 0) > 3
    assert codes.get("drop_idle_tails", 0) > 0
