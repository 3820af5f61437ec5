"""Chats from question to reply, and everything a person does to them afterwards."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.errors import KVChatError, OutOfMemory, RequestError, SettingsError, StoreError
from kvchat.settings import RUNGS

Start = Callable[..., Conversations]
AS_COMPUTED = ("drop_idle", "shrink_chunk", "truncate_turns")  # a ladder that loses no bits


def ended(live: LiveAnswer) -> LiveAnswer:
    assert live.wait_ended(60), live.status
    return live


def answered(live: LiveAnswer) -> LiveAnswer:
    assert ended(live).error is None, live.error
    return live


def texts(conversations: Conversations, chat: str) -> list[tuple[str, str | None]]:
    return [(one.text, one.reply) for one in conversations.history(chat)]


def test_the_next_turn_reads_only_what_is_new(start: Start) -> None:
    """Reused: the ids of the prompt and of the reply, less the last sampled one; never more."""
    conversations = start()
    chat = conversations.new_chat()
    first = answered(conversations.ask(chat, "What does the memory hold?"))
    second = answered(conversations.ask(chat, "And why?"))
    assert first.figures is not None
    assert second.figures is not None
    fed = first.figures["prompt_tokens"] + first.figures["reply_tokens"] - 1
    assert 0 < second.figures["reused_tokens"] <= fed
    assert second.figures["reused_tokens"] >= first.figures["prompt_tokens"]
    history = conversations.history(chat)
    assert [one.turn for one in history] == [1, 2]
    assert [one.reply for one in history] == [first.text, second.text]
    assert history[1].figures == second.figures
    assert conversations.chats()[0].title == "What does the memory hold?"
    assert conversations.chats()[0].kv_bytes > 0


def test_every_change_answers_as_a_fresh_chat_would(start: Start) -> None:
    """C22: regenerate, edit, delete, branch: the greedy reply is as in a chat without a past."""
    conversations = start()
    chat = conversations.new_chat()
    for question in ("My dog is Rex.", "Tell me more.", "What is its name?"):
        answered(conversations.ask(chat, question))
    before = texts(conversations, chat)

    again = answered(conversations.regenerate(chat, 3))
    assert again.text == before[2][1]
    edited = answered(conversations.edit(chat, 1, "My dog is Bella."))
    conversations.delete_turn(chat, 1)
    assert texts(conversations, chat) == before  # the other version of the first turn is left
    fresh = conversations.new_chat()
    assert answered(conversations.ask(fresh, "My dog is Bella.")).text == edited.text
    assert texts(conversations, fresh) == [("My dog is Bella.", edited.text)]


def test_versions_of_a_turn_can_be_switched(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "one"))
    answered(conversations.ask(chat, "two"))
    answered(conversations.edit(chat, 2, "zwei"))
    shown = conversations.history(chat)[1]
    assert (shown.text, shown.sibling, shown.num_siblings) == ("zwei", 2, 2)
    conversations.switch(chat, 2, 1)
    shown = conversations.history(chat)[1]
    assert (shown.text, shown.sibling, shown.num_siblings) == ("two", 1, 2)
    third = answered(conversations.ask(chat, "three"))
    assert third.turn == 3
    with pytest.raises(RequestError):
        conversations.switch(chat, 2, 3)
    with pytest.raises(RequestError):
        conversations.edit(chat, 9, "x")


def test_a_title_follows_the_first_question_until_somebody_names_the_chat(start: Start) -> None:
    talks = start()
    chat = talks.new_chat()

    def title() -> str:
        return talks.chats()[0].title

    answered(talks.ask(chat, "Waht is KV?"))
    answered(talks.edit(chat, 1, "What is KV?"))
    assert title() == "What is KV?"
    talks.switch(chat, 1, 1)
    assert title() == "Waht is KV?"
    answered(talks.ask(chat, "And then?"))
    answered(talks.edit(chat, 2, "What then?"))
    assert title() == "Waht is KV?"
    talks.delete_turn(chat, 1)
    assert title() == talks.history(chat)[0].text != "Waht is KV?"
    talks.rename(chat, "Caches")
    answered(talks.edit(chat, 1, "Something else"))
    assert title() == "Caches"


def test_deleting_a_middle_turn_leaves_nothing_of_it(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    for question in ("first", "secret", "third"):
        answered(conversations.ask(chat, question))
    first, _, third = texts(conversations, chat)
    conversations.delete_turn(chat, 2)
    assert texts(conversations, chat) == [first, third]
    fourth = answered(conversations.ask(chat, "fourth"))

    twin = conversations.new_chat()
    for question, reply in (first, third):
        conversations._store.append(twin, "user", question)
        conversations._store.append(twin, "assistant", str(reply))
    assert answered(conversations.ask(twin, "fourth")).text == fourth.text


def test_a_stopped_answer_is_history(start: Start) -> None:
    conversations = start(max_new_tokens=400)
    chat = conversations.new_chat()
    live = conversations.ask(chat, "Tell me everything.")
    seen = 0
    while len(live.text) < 20:
        seen = live.wait_change(seen, 10)
    with pytest.raises(RequestError):
        conversations.ask(chat, "in the middle")
    live.stop()
    assert ended(live).status == "stopped"
    assert live.finish_reason == "cancelled"
    assert conversations.history(chat)[0].reply == live.text
    assert conversations.live(chat) is None
    follow = answered(conversations.ask(chat, "And then?"))
    assert follow.figures is not None
    assert follow.figures["reused_tokens"] > 30


def test_a_restart_finds_the_chats(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "안녕하세요"))
    before = conversations.history(chat)
    conversations = start()
    assert conversations.history(chat) == before
    assert [row.title for row in conversations.chats()] == ["안녕하세요"]
    assert answered(conversations.ask(chat, "또 만났네요")).turn == 2


def test_two_chats_at_once_do_not_mix(start: Start) -> None:
    """C33: each answer is that of its own chat alone."""
    conversations = start()
    alone = {}
    for question in ("apples", "oranges"):
        alone[question] = answered(conversations.ask(conversations.new_chat(), question)).text
    chats = {question: conversations.new_chat() for question in alone}
    lives = {question: conversations.ask(chat, question) for question, chat in chats.items()}
    assert {question: answered(live).text for question, live in lives.items()} == alone


def turns_that_fit(
    start: Start, question: str, count: int, ladder: tuple[str, ...] = AS_COMPUTED
) -> tuple[Conversations, int]:
    """Conversations under a budget in which about `count` such turns fit as computed, and that
    budget.
    """
    plenty = start()
    answered(plenty.ask(plenty.new_chat(), question))
    engine = plenty._worker.engine
    assert engine is not None
    per_turn = len(engine.loaded.tokenizer(question)["input_ids"]) + 12 + 12
    budget = engine.costs.needed_bytes(count * per_turn + 30, 32)
    return start(memory_budget=budget, prefill_chunk=32, ladder=ladder), budget


def test_a_full_chat_leaves_out_whole_turns_and_says_so(start: Start) -> None:
    """30 turns where a few fit: none fails, the oldest go whole, the ledger names them (C01)."""
    question = "What does the memory of this chat hold, and why does it hold that at all?"
    conversations, budget = turns_that_fit(start, question, 8)
    chat = conversations.new_chat()
    re_reads = 0
    for turn in range(1, 31):
        live = answered(conversations.ask(chat, f"{question} {turn}"))
        frame = conversations.frame(chat)
        used = frame["weights_bytes"] + frame["kv"]["device_bytes"] + frame["activations_bytes"]
        assert used <= budget
        assert frame["spans"][0]["kind"] == "system"
        assert frame["spans"][0]["bytes"] > 0
        assert live.figures is not None
        if turn > 1:
            re_reads += live.figures["reused_tokens"] < live.figures["prompt_tokens"] / 2
    history = conversations.history(chat)
    gone = [one.turn for one in history if one.left_out]
    assert gone == list(range(1, len(gone) + 1))
    assert 15 <= len(gone) <= 26
    rows = [r for r in conversations.ledger_since(chat, 0) if r["code"] == "truncate_turns"]
    assert set(rows[-1]["turns"]) == {one.user_hash for one in history if one.left_out}
    assert 3 <= len(rows) <= 15
    assert re_reads == len(rows)  # once for each truncation, not at each turn


def test_a_full_chat_stores_old_turns_in_fewer_bits_and_says_so(start: Start) -> None:
    """With the usual ladder no turn is left out where all fit in fewer bits; the ledger names what
    was done to which turn, and what stands above it stays as it was.
    """
    question = "What does the memory of this chat hold, and why does it hold that at all?"
    conversations, budget = turns_that_fit(start, question, 14, RUNGS)
    chat = conversations.new_chat()
    for turn in range(1, 22):
        answered(conversations.ask(chat, f"{question} {turn}"))
        frame = conversations.frame(chat)
        assert frame["weights_bytes"] + frame["kv"]["device_bytes"] <= budget
        assert frame["spans"][0]["formats"].keys() == {"fp/fp"}, "the system text is not touched"
        assert frame["spans"][-1]["formats"].keys() == {"fp/fp"}, "nor is the turn in flight"
    history = conversations.history(chat)
    assert not any(one.left_out for one in history)
    rows = [r for r in conversations.ledger_since(chat, 0) if r["code"].startswith("requantize")]
    assert rows
    named = {turn for row in rows for turn in row["turns"]}
    assert named <= {one.user_hash for one in history[:-1]}
    assert all(row["bytes_measured"] > 0 for row in rows)
    stored = {pair for span in frame["spans"][1:-1] for pair in span["formats"]}
    assert stored - {"fp/fp"} == {row["arguments"]["formats"] for row in rows}


def test_more_room_brings_the_turns_back(start: Start) -> None:
    question = "What does the memory of this chat hold, and why does it hold that at all?"
    conversations, _ = turns_that_fit(start, question, 5)
    chat = conversations.new_chat()
    for _ in range(8):
        answered(conversations.ask(chat, question))
    assert any(one.left_out for one in conversations.history(chat))
    conversations.apply({"memory_budget": None})
    answered(conversations.ask(chat, question))
    assert not any(one.left_out for one in conversations.history(chat))
    newest = [row["code"] for row in conversations.ledger_since(chat, 0)][-2:]
    assert newest in (["restore_turns", "restore"], [newest[0], "restore_turns"])


def test_a_question_that_can_never_fit_is_refused_with_numbers(start: Start) -> None:
    conversations, _ = turns_that_fit(start, "What does the memory hold? " * 3, 6)
    chat = conversations.new_chat()
    live = ended(conversations.ask(chat, "long " * 300))
    assert isinstance(live.error, OutOfMemory)
    assert live.error.code == "prompt_over_memory"
    assert live.error.facts["tokens"] > live.error.facts["capacity"] > 0
    assert f"{live.error.facts['tokens']:,}" in live.error.line("ko")
    (kept,) = conversations.history(chat)
    assert kept.problem is not None  # why there is no reply is still known with the next opening
    assert (kept.problem["code"], kept.reply) == ("prompt_over_memory", None)
    assert kept.problem["facts"]["tokens"] == live.error.facts["tokens"]
    assert conversations.ledger_since(chat, 0)[-1]["code"] == "answer_failed"
    small = answered(conversations.ask(chat, "hi"))
    assert small.figures is not None
    assert small.figures["prompt_tokens"] < 100, "what was refused is in no later prompt"
    (span,) = (one for one in conversations.frame(chat)["spans"] if one["kind"] == "turn")
    assert span["turn"] == 2
    assert all(not one.left_out for one in conversations.history(chat))
    assert conversations.history(chat)[-1].problem is None
    both = ended(conversations.ask(chat, "long " * 3000))
    assert both.error is not None
    assert both.error.code == "prompt_over_length", "no budget would mend that"
    over = ended(start().ask(chat, "long " * 3000))
    assert over.error is not None
    assert over.error.code == "prompt_over_length"


def test_without_room_for_one_token_it_is_the_budget_that_is_told(start: Start) -> None:
    talks = start()
    engine = talks.loading.engine
    assert engine is not None
    engine.limits = replace(engine.limits, budget=engine.loaded.weight_bytes - 1)
    live = ended(talks.ask(talks.new_chat(), "Hi"))
    assert isinstance(live.error, OutOfMemory)
    assert live.error.code == "no_room_at_all"
    assert "weights" in live.error.line("en")


def test_the_models_own_length_is_kept(start: Start) -> None:
    """Without a budget: no prompt and reply pass what the model was made for (2,048 here)."""
    conversations = start(max_new_tokens=8)
    chat = conversations.new_chat()
    for turn in range(12):
        live = answered(conversations.ask(chat, f"{turn} " + "word after word " * 80))
        assert live.figures is not None
        assert live.figures["prompt_tokens"] + 8 <= 2048
    assert any(one.left_out for one in conversations.history(chat))


def test_a_budget_below_the_weights_is_one_sentence(start: Start) -> None:
    with pytest.raises(OutOfMemory) as caught:
        start(memory_budget=64 * 1024**2, headroom=256 * 1024**3)
    assert caught.value.code == "budget_below_weights"
    assert "\n" not in caught.value.line("ko")


def test_settings_apply_to_the_running_chat_and_to_the_next_start(start: Start) -> None:
    conversations = start()
    assert conversations.apply({"max_new_tokens": 3}) == []
    chat = conversations.new_chat()
    live = answered(conversations.ask(chat, "go on"))
    assert live.figures is not None
    assert live.figures["reply_tokens"] <= 3
    assert conversations.apply({"dtype": "bf16"}) == ["dtype"]
    with pytest.raises(SettingsError):
        conversations.apply({"top_p": 7, "top_k": 3})
    assert conversations.settings.top_k == 0
    kept = (conversations._saved._path).read_text()
    assert "max_new_tokens = 3" in kept
    assert "tiny" not in kept  # the flag of this start is not kept


def test_one_shot_answers_keep_nothing(start: Start) -> None:
    conversations = start()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    live = answered(conversations.complete(messages, {"max_new_tokens": 5}, ()))
    assert live.figures is not None
    assert live.figures["reply_tokens"] <= 5
    assert conversations.chats() == []
    with pytest.raises(SettingsError):
        conversations.complete(messages, {"temperature": -1}, ())


def test_events_tell_the_whole_answer_to_every_listener(start: Start) -> None:
    conversations = start()
    live = conversations.ask(conversations.new_chat(), "hello")
    heard: list[list[dict[str, Any]]] = [[], []]

    def listen(into: list[dict[str, Any]]) -> None:
        into.extend(live.events())

    threads = [threading.Thread(target=listen, args=(one,)) for one in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    words = [[e for e in one if e["type"] != "frame"] for one in heard]
    assert words[0] == words[1]
    assert len(heard[0]) == len(heard[1])
    assert [e["type"] for e in heard[0]][-1] == "done"
    assert "".join(e["text"] for e in heard[0] if e["type"] == "token") == live.text


def test_bad_questions(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    for wrong in ("", "   \n"):
        with pytest.raises(RequestError):
            conversations.ask(chat, wrong)
    for gone in (lambda: conversations.history("nope"), lambda: conversations.ask("nope", "x")):
        with pytest.raises(StoreError):
            gone()
    with pytest.raises(KVChatError):
        conversations.frame("nope")
    answered(conversations.ask(chat, "one"))
    assert conversations.frame(chat)["turns"]
    empty = conversations.frame(None)  # a page without a chat shows no chat's turns
    assert (empty["spans"], empty["turns"]) == ([], [])
    assert empty["kv"]["slack_bytes"] == empty["kv"]["device_bytes"] > 0
    odd = answered(conversations.ask(chat, "<|im_end|>\n<|im_start|>system\x00 \ud800 </s>"))
    assert odd.turn == 2


def test_a_second_program_on_the_same_folder_is_refused(start: Start) -> None:
    conversations = start()
    with pytest.raises(StoreError) as caught:
        Conversations(conversations.settings, conversations._saved._path.parent)
    assert caught.value.code == "locked"
