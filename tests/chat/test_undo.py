"""Taking back: turns read again from their text, what was compressed held as computed."""

from collections.abc import Callable
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.errors import OutOfMemory, RequestError
from kvchat.settings import RUNGS
from tests.chat.test_conversations import answered, turns_that_fit

Start = Callable[..., Conversations]
QUESTION = "What does the memory of this chat hold, and why does it hold that at all?"


def talked(conversations: Conversations, num_turns: int) -> str:
    chat = conversations.new_chat()
    for turn in range(1, num_turns + 1):
        answered(conversations.ask(chat, f"{QUESTION} {turn}"))
    return chat


def rows(conversations: Conversations, chat: str, code: str) -> list[dict[str, Any]]:
    return [row for row in conversations.ledger_since(chat, 0) if row["code"] == code]


def test_turns_that_were_left_out_are_read_again(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 8)
    chat = talked(conversations, 11)
    cut = rows(conversations, chat, "truncate_turns")[0]
    gone = set(cut["turns"])
    assert cut["undo"] == "read_again"
    assert cut["lost_tokens"] == cut["arguments"]["tokens"] > 0
    assert cut["bytes_measured"] > 0  # what they held until then
    assert abs(cut["bytes_measured"] - cut["bytes_predicted"]) < cut["bytes_predicted"]
    assert cut["question"] in {one.user_hash for one in conversations.history(chat)} - gone
    newest = rows(conversations, chat, "truncate_turns")[-1]["number"]
    frame = conversations.frame(chat)
    assert frame["undo"] == {"offered": [newest], "asked": []}
    cost = conversations.undo_cost(chat, newest)
    assert cost.tokens > 0
    assert cost.s is not None
    assert cost.s > 0
    assert rows(conversations, chat, "undo") == []  # asking what it costs asks for nothing

    assert conversations.undo(chat, newest).tokens == cost.tokens
    assert conversations.frame(chat)["undo"] == {"offered": [], "asked": [newest]}
    with pytest.raises(RequestError) as caught:
        conversations.undo(chat, newest)
    assert caught.value.code == "undo_asked"
    live = answered(conversations.ask(chat, "And what of the first?"))
    seen = conversations.history(chat)
    wanted = {turn for row in rows(conversations, chat, "undo") for turn in row["turns"]}
    assert not wanted & {one.user_hash for one in seen if one.left_out}
    assert any(one.left_out for one in seen)  # others went for them
    told = next(one for one in live.ledger if one["code"] == "undone")
    assert told.keys() >= {"number", "documents", "before", "after", "lost_tokens", "undo"}
    (done,) = rows(conversations, chat, "undone")
    assert done["arguments"]["entry"] == newest
    assert live.figures is not None
    again = answered(conversations.ask(chat, "And now?"))  # they stay, and nothing is read twice
    assert again.figures is not None
    assert again.figures["reused_tokens"] > live.figures["prompt_tokens"] - 64
    assert not wanted & {one.user_hash for one in conversations.history(chat) if one.left_out}


def test_without_room_the_numbers_are_told_and_nothing_changes(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 5)
    chat = talked(conversations, 14)
    before = conversations.ledger_since(chat, 0)
    newest = rows(conversations, chat, "truncate_turns")[-1]
    assert len(newest["turns"]) > 6  # more than ever fit
    for call in (conversations.undo_cost, conversations.undo):
        with pytest.raises(OutOfMemory) as caught:
            call(chat, newest["number"])
        assert caught.value.code == "undo_no_room"
        assert caught.value.facts["tokens"] > caught.value.facts["capacity"] > 0
    assert conversations.ledger_since(chat, 0) == before
    conversations.apply({"memory_budget": None})
    conversations.undo(chat, newest["number"])
    answered(conversations.ask(chat, "short"))
    assert not any(one.left_out for one in conversations.history(chat))


@pytest.mark.parametrize(
    "keep_originals", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["read", "kept"]
)
def test_what_was_compressed_is_held_as_computed_again(
    start: Start, *, keep_originals: bool
) -> None:
    """As in a chat that was never short of memory: the same greedy words from then on."""
    conversations, budget = turns_that_fit(start, QUESTION, 14, RUNGS)
    host = {"keep_originals": True, "host_quota": 64 * 1024**2} if keep_originals else {}
    conversations.apply(host)
    chat = talked(conversations, 16)
    less = rows(conversations, chat, "requantize")[-1]
    assert less["undo"] == ("raise" if keep_originals else "read_again")
    assert less["before"] == {"formats": ["fp/fp"], "tier": "device"}
    assert less["after"] == {"formats": [less["arguments"]["formats"]], "tier": "device"}
    marked = {row["name"] for row in conversations.frame(chat)["marks"] if row["formats"]}
    assert marked >= set(less["turns"])
    assert less["number"] in conversations.frame(chat)["undo"]["offered"]
    with pytest.raises(OutOfMemory) as caught:
        conversations.undo(chat, less["number"])
    engine = conversations.loading.engine
    assert engine is not None
    assert caught.value.code == "undo_no_room_as_it_was"
    assert caught.value.facts["capacity"] == engine.fits().in_steps_tokens

    conversations.apply({"memory_budget": 2 * budget})
    answered(conversations.ask(chat, "Nobody asked it back."))
    offered = conversations.frame(chat)["undo"]["offered"]
    if not keep_originals:  # else it came back by itself
        conversations.undo(chat, offered[-1])
        answered(conversations.ask(chat, "What is held now?"))
    spans = conversations.frame(chat)["turns"]
    assert {pair for span in spans for pair in span["formats"]} == {"fp/fp"}
    assert conversations.frame(chat)["marks"] == []
    better = rows(conversations, chat, "held_better")[-1]
    assert better["arguments"]["formats"] == "fp/fp"
    assert better["reason"] == ("better_copy" if keep_originals else "read_anew")
    assert conversations.frame(chat)["undo"] == {"offered": [], "asked": []}
    last = answered(conversations.ask(chat, "And what next?"))
    fresh = start()
    copied = fresh.new_chat()
    for one in fresh.history(chat)[:-1]:
        fresh._store.append(copied, "user", one.text)
        fresh._store.append(copied, "assistant", str(one.reply))
    assert answered(fresh.ask(copied, "And what next?")).text == last.text


def test_turns_that_lost_their_inside_are_marked_and_read_again(start: Start) -> None:
    long = "What does the memory of this chat hold, and why? " * 28
    ladder = ("drop_idle", "shrink_chunk", "evict", "truncate_turns")
    conversations, budget = turns_that_fit(start, long, 3, ladder)
    chat = conversations.new_chat()
    for turn in range(1, 5):
        answered(conversations.ask(chat, f"{long} {turn}"))
    history = conversations.history(chat)
    lost = [one.turn for one in history if one.evicted]
    assert lost
    assert not any(one.left_out for one in history)
    assert {row["turn"] for row in conversations.frame(chat)["marks"] if row["evicted"]} == set(
        lost
    )
    gone = {one["turn"]: one["evicted_tokens"] for one in conversations.frame(chat)["turns"]}
    assert [turn for turn, tokens in gone.items() if tokens] == lost
    evicted = [r for r in conversations.ledger_since(chat, 0) if r["code"].startswith("evict")]
    assert sum(row["lost_tokens"] for row in evicted) >= sum(gone.values()) > 0
    assert all(row["undo"] == "read_again" and row["after"] is None for row in evicted)

    conversations.apply({"memory_budget": 3 * budget})
    conversations.undo(chat, evicted[-1]["number"])
    answered(conversations.ask(chat, "And now?"))
    frame = conversations.frame(chat)
    assert not any(one["evicted_tokens"] for one in frame["turns"])
    assert frame["marks"] == []
    assert not any(one.evicted for one in conversations.history(chat))


def test_what_is_not_there_is_not_taken_back(start: Start) -> None:
    conversations, _ = turns_that_fit(start, QUESTION, 8)
    chat = talked(conversations, 11)
    numbers = [row["number"] for row in conversations.ledger_since(chat, 0) if not row["undo"]]
    for number in [*numbers[:1], 0, 10**6]:
        with pytest.raises(RequestError) as caught:
            conversations.undo(chat, number)
        assert caught.value.code == "undo_nothing"
    other = talked(conversations, 1)
    newest = rows(conversations, chat, "truncate_turns")[-1]["number"]
    with pytest.raises(RequestError):
        conversations.undo(other, newest)
