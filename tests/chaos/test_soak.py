"""Long chats in little memory: no turn fails, what takes memory stays level, and every turn that
the model no longer sees stands in the ledger.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import psutil
import pytest

from kvchat.chat.branch import Branch
from kvchat.chat.conversations import Conversations
from kvchat.chat.marks import marks
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request
from kvchat.engine.limits import Limits
from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import FormatPair
from kvchat.planner.plan import LEAST_REPLY
from kvchat.settings import resolve
from kvchat.units import MIB
from tests.chat.test_conversations import AS_COMPUTED
from tests.engine.test_engine import MakeEngine, random_ids, request
from tests.tiny import place_builtin

Start = Callable[..., Conversations]
NUM_TURNS = 300  # a turn costs the more the longer the chat is: 1,000 take five minutes
LEVEL = 0.03  # of what is resident, after the first tenth


@dataclass
class Talk:
    """One chat; what its prompts held, and what was resident after each answer."""

    conversations: Conversations
    chat: str = ""
    told: set[str] = field(default_factory=set)
    resident: list[int] = field(default_factory=list)
    forgot: int = 0

    def __post_init__(self) -> None:
        self.chat = self.conversations.new_chat()
        worker = self.conversations._worker
        right = worker.submit

        def submit(asked: Request):
            self.told = {span.name for span in asked.spans if span.kind == "turn"}
            return right(asked)

        worker.submit = submit  # type: ignore[method-assign]

    def ask(self, text: str) -> None:
        live = self.conversations.ask(self.chat, text)
        assert live.wait_ended(120), live.status
        assert live.error is None, (live.turn, live.error)
        assert live.finish_reason in ("stop", "length")
        self.resident.append(psutil.Process().memory_info().rss)

    def check_ledger(self) -> None:
        """What the newest prompt did not hold is what the ledger says was left out."""
        store = self.conversations._store
        asked = {one.hash for one in Branch(store, self.chat).questions()}
        missing = asked - self.told
        assert marks(store.ledger(self.chat), asked).left_out == missing
        self.forgot = max(self.forgot, len(missing))

    def assert_level(self, most: float = LEVEL) -> None:
        """Each tenth after the first one beside that, in the middle of both."""
        tenth = len(self.resident) // 10
        middles = [median(self.resident[at : at + tenth]) for at in range(0, 10 * tenth, tenth)]
        for resident in middles[1:]:
            assert abs(resident - middles[1]) <= most * middles[1], [int(m) >> 20 for m in middles]


@pytest.mark.slow
def test_hundreds_of_turns(start: Start) -> None:
    """In a process that is no more than the program is: heaps are shared from its start."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        alone = {name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")}
        plain = ("-q", "-n0", "-p", "no:cacheprovider", "-m", "slow", "-k", "hundreds_of_turns")
        subprocess.run([sys.executable, "-m", "pytest", *plain, __file__], env=alone, check=True)
        return
    engine = start()._worker.engine
    assert engine is not None
    budget = engine.costs.needed_bytes(700, 64)
    del engine
    flags = {"prefill_chunk": 64, "max_new_tokens": 4, "disk_quota": MIB, "ladder": AS_COMPUTED}
    talk = Talk(start(memory_budget=budget, **flags))
    objects = []
    for number in range(NUM_TURNS):
        talk.ask(f"What holds number {number}, and why?")
        if number % 50 == 49:
            talk.check_ledger()
            gc.collect()
            objects.append(len(gc.get_objects()))
    talk.assert_level()
    assert max(objects[1:]) <= (1 + LEVEL) * objects[1]
    assert talk.forgot > NUM_TURNS - 100
    assert talk.conversations._store.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "dtype", "words"), [(700 * MIB, "fp32", 500), (512 * MIB, "bf16", 1500)]
)
def test_sixty_turns_of_the_builtin_model(
    data_dir: Path, budget: int, dtype: str, words: int
) -> None:
    """The first turns fill the budget, so that the rest of the chat is a full one."""
    place_builtin(data_dir)
    flags = {"memory_budget": budget, "dtype": dtype, "temperature": 0, "max_new_tokens": 4}
    conversations = Conversations(resolve(flags=flags | {"headroom": 0}), data_dir)
    try:
        conversations.wait_ready(120)
        talk = Talk(conversations)
        for number in range(60):
            long = "word after word " * (words // 3) if number < 6 else ""
            talk.ask(f"{long}What did I say as number {number}?")
            talk.check_ledger()
        talk.assert_level()
        codes = {row["code"] for row in conversations.ledger_since(talk.chat, 0)}
        assert codes & {"requantize", "evict", "truncate_turns"}, "the budget was never reached"
        assert conversations._store.verify() == []
    finally:
        conversations.close()


def test_a_reply_that_may_be_long_starves_no_prompt(start: Start) -> None:
    """Room for a reply of any length is asked for; the prompt comes first, and that is said."""
    engine = start()._worker.engine
    assert engine is not None
    budget = engine.costs.needed_bytes(900, 64)
    del engine
    conversations = start(memory_budget=budget, prefill_chunk=64, max_new_tokens=1800)
    chat = conversations.new_chat()
    for words in (150, 10):
        live = conversations.ask(chat, "word after word " * (words // 3))
        assert live.wait_ended(120)
        assert live.error is None, live.error
        assert live.figures is not None
        assert live.figures["reply_tokens"] >= 1
        (shrunk,) = [row for row in live.ledger if row["code"] == "shrink_reply"]
        assert LEAST_REPLY <= shrunk["arguments"]["tokens"] < shrunk["arguments"]["was"] == 1800


@pytest.mark.parametrize(
    ("kind", "seal"), [("llama", "int8"), ("gemma3", "fp"), ("gemma3", "int6/int4")]
)
def test_long_and_short_texts_by_turns_leave_no_more_and_more_holes(
    make_engine: MakeEngine, kind: str, seal: str
) -> None:
    """Blocks of several sizes, under a budget for one long text: every text is made, and what
    stands free does not grow.
    """
    pair = FormatPair.parse(seal)
    engine = make_engine(kind)
    engine.limits = limits_of(engine, pair, None)
    budget = engine.costs.needed_bytes(620, 64)
    engine = make_engine(kind)
    engine.limits = limits_of(engine, pair, budget)
    free: list[int] = []
    for number in range(15):
        for num_tokens in (600, 20, 130):
            ids = random_ids(num_tokens, 1000 * number + num_tokens)
            events = []
            for event in engine.run(request(ids, max_new_tokens=3, prefill_chunk=64)):
                assert engine.loaded.weight_bytes + engine.pool.device_bytes <= budget
                events.append(event)
            assert isinstance(events[-1], Done), (number, num_tokens, events[-1])
        engine.close_text()
        engine.pool.check_integrity(0)
        free.append(engine.pool.free_block_bytes)
    assert max(free[5:]) <= max(free[:5]) + max(g.block_bytes for g in engine.pool.geometries)
    engine.pool.drop_idle(2**60)
    assert engine.pool.device_bytes == 0


def limits_of(engine: Engine, pair: FormatPair, budget: int | None) -> Limits:
    return replace(engine.limits, budget=budget, storing=Storing(pair, pair, 64))
