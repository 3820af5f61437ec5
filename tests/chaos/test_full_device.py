"""A device that is smaller than it says: each turn of a chat is answered all the same, with what
fits; and once there is more, it is taken again.
"""

import gc
import time
from collections.abc import Callable, Iterator

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.engine import measuring
from tests.chaos.refusing import refusing
from tests.chat.test_conversations import AS_COMPUTED, answered

Start = Callable[..., Conversations]


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """The guard collects after each failure: not all libraries each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_no_turn_fails_on_a_device_that_says_too_much(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C01: from some turn on the oldest are left out, and it is said."""
    conversations = start(max_new_tokens=8, prefill_chunk=64, ladder=AS_COMPUTED)
    engine = conversations._worker.engine
    assert engine is not None
    costs = engine.costs
    room = costs.blocks_bytes(500, 64) + costs.hot_bytes(500, 64)
    chat = conversations.new_chat()
    with refusing(lambda num_bytes: engine.pool.device_bytes + num_bytes <= room):
        for number in range(16):
            answered(conversations.ask(chat, f"What does the memory hold as number {number}? " * 2))
    codes = [row["code"] for row in conversations.ledger_since(chat, 0)]
    assert "truncate_turns" in codes
    assert "answer_failed" not in codes
    assert any(one.left_out for one in conversations.history(chat))
    assert engine.last_snapshot.found_bytes is not None
    monkeypatch.setattr(measuring, "FOUND_S", 0.0)
    until_s = time.monotonic() + 20
    while engine.last_snapshot.found_bytes is not None and time.monotonic() < until_s:
        time.sleep(0.05)  # memory is measured once a second while nothing is asked
    answered(conversations.ask(chat, "And now that there is room?"))
    assert not any(one.left_out for one in conversations.history(chat))
