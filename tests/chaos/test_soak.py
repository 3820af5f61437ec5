"""Long chats in little memory: no turn fails, what takes memory stays level, and every turn that
the model no longer sees stands in the ledger.
"""

import gc
import time
from collections.abc import Callable, Sequence
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
from kvchat.units import MIB
from tests.chaos.alone import ran_alone
from tests.chat.test_conversations import AS_COMPUTED
from tests.engine.test_engine import MakeEngine, random_ids, request
from tests.starts import resolve
from tests.tiny import place_builtin

Start = Callable[..., Conversations]
NUM_TURNS = 1000
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
        assert live.wait_ended(600), live.status
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


def assert_level(resident: Sequence[int]) -> None:
    """No tenth after the first has more than any tenth before it had, in the middle of each: what
    grows is the fault. What falls gave memory back, and may not take it again.
    """
    middles = tenths_of(resident)
    for number, there in enumerate(middles[2:], 2):
        least = min(middles[1:number])
        assert there <= (1 + LEVEL) * least, [int(one) >> 20 for one in middles]


def tenths_of(resident: Sequence[int]) -> list[float]:
    """The middle of each tenth."""
    tenth = len(resident) // 10
    return [median(resident[at : at + tenth]) for at in range(0, 10 * tenth, tenth)]


def assert_settles(resident: Sequence[int]) -> None:
    """For a run so short that libraries still fill their caches of shapes in it (some 30 MiB until
    the seventh tenth, then nothing): all tenths after the first lie near their middle, and the last
    ones are level.
    """
    middles = tenths_of(resident)
    said = [int(one) >> 20 for one in middles]
    centre = median(middles[1:])
    assert all(abs(one - centre) <= LEVEL * centre for one in middles[1:]), said
    assert max(middles[7:]) <= (1 + LEVEL / 3) * middles[7], said


def test_what_grows_does_not_settle() -> None:
    assert_settles([1207, 1264, 1268, 1271, 1278, 1287, 1292, 1293, 1294, 1294])
    for growing in (
        [1200 + 9 * n for n in range(10)],
        [1200, 1240, 1250, 1260, 1265, 1270, 1275, 1280, 1290, 1295],
        [1200] * 8 + [1220] * 2,
    ):
        with pytest.raises(AssertionError):
            assert_settles(growing)


def test_what_grows_is_not_level() -> None:
    """Slowly, at once, and after others gave memory back."""
    level = [600 * MIB] * 100
    assert_level(level)
    assert_level([500 * MIB] * 10 + level)  # the first tenth fills caches
    assert_level([2400 * MIB] * 60 + [1840 * MIB] * 40)
    for growing in (
        [(600 + n // 4) * MIB for n in range(100)],
        [600 * MIB] * 60 + [625 * MIB] * 40,
        [2400 * MIB] * 40 + [1800 * MIB] * 30 + [1900 * MIB] * 30,
    ):
        with pytest.raises(AssertionError):
            assert_level(growing)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two minutes where nothing else runs
def test_a_thousand_turns(request: pytest.FixtureRequest) -> None:
    """What is resident stays level, and so does what a turn takes: of the first hundreds that are
    full, and of the last.
    """
    if ran_alone(request):
        return
    start = request.getfixturevalue("start")
    engine = start()._worker.engine
    assert engine is not None
    budget = engine.costs.needed_bytes(700, 64)
    del engine
    flags = {"prefill_chunk": 64, "max_new_tokens": 4, "disk_quota": MIB, "ladder": AS_COMPUTED}
    talk = Talk(start(memory_budget=budget, **flags))
    objects, taken = [], []
    for number in range(NUM_TURNS):
        began = time.process_time()
        talk.ask(f"What holds number {number}, and why?")
        taken.append(time.process_time() - began)
        if number % 50 == 49:
            talk.check_ledger()
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert_level(talk.resident)
    assert max(objects[1:]) <= (1 + LEVEL) * objects[1]
    assert talk.forgot > NUM_TURNS - 100
    assert median(taken[-200:]) < 2 * median(taken[100:300])
    assert talk.conversations._store.verify() == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("budget", "dtype", "words"), [(700 * MIB, "fp32", 500), (512 * MIB, "bf16", 1500)]
)
def test_sixty_turns_of_the_builtin_model(
    request: pytest.FixtureRequest, data_dir: Path, budget: int, dtype: str, words: int
) -> None:
    """The first turns fill the budget, so that the rest of the chat is a full one."""
    if ran_alone(request):
        return
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
        assert_settles(talk.resident)
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
