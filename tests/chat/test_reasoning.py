"""Reasoning told apart: tags that are whole, missing, unclosed, in pieces, or only talked about."""

import time
from collections.abc import Callable

import pytest

from kvchat.chat.attached import attached
from kvchat.chat.conversations import Conversations
from kvchat.chat.reasoning import TAGS, Reasoned, masked, reasoned, without_reasoning
from kvchat.chat.told import told_of_branch

Start = Callable[..., Conversations]


@pytest.mark.parametrize(("first", "last"), TAGS)
def test_the_two_are_told_apart(first: str, last: str) -> None:
    assert reasoned(f"{first}\nHm.\n{last}\n\nYes.") == Reasoned("Hm.", "Yes.")
    assert reasoned(f" \n{first}{last}Yes.") == Reasoned("", "Yes.")


def test_several_blocks_at_the_head_are_one() -> None:
    reply = "<think>a</think>\n<think>b</think>answer"
    assert reasoned(reply) == Reasoned("a\n\nb", "answer")


def test_the_first_tag_may_be_missing() -> None:
    assert reasoned("Let me see.\n</think>\n\nYes.") == Reasoned("Let me see.", "Yes.")


def test_without_a_last_tag_there_is_no_answer() -> None:
    assert reasoned("<think>\nOn and on") == Reasoned("On and on", "", is_open=True)


@pytest.mark.parametrize(
    "reply",
    [
        "The tag <think> opens it and </think> ends it.",
        "Use `</think>` in the template.",
        "```\n<think>\nx\n</think>\n```\nlike so",
        "a plain answer",
        "",
        "<thinker> is another word",
    ],
)
def test_a_tag_that_is_only_talked_about_is_a_word(reply: str) -> None:
    assert reasoned(reply) == Reasoned("", reply)


def test_no_part_of_a_tag_is_ever_shown_while_it_comes() -> None:
    """Split over tokens at every character."""
    for first, last in TAGS:
        reply = f"{first}\nwhy <b> not\n{last}\n\nan answer with {first} in it"
        for end in range(len(reply)):
            found = reasoned(reply[:end], growing=True)
            for part in (first, last):
                assert not found.reasoning.endswith(part[:-1])
            if found.is_open:
                assert "why <b> not".startswith(found.reasoning)
            elif end < len(first):
                assert found.answer == ""
        assert reasoned(reply).answer == f"an answer with {first} in it"


def test_what_only_looks_like_a_tag_is_shown_once_that_is_clear() -> None:
    assert reasoned("<", growing=True).answer == ""
    assert reasoned("<table", growing=True).answer == "<table"
    assert reasoned("<think", growing=False).answer == "<think"


def test_reasoning_is_out_of_the_history_unless_it_is_kept(start: Start) -> None:
    conversations = start()
    store, chat = conversations._store, conversations.new_chat()
    store.append(chat, "user", "<think>mine</think>")
    store.append(chat, "assistant", "<think>long</think>Yes.")
    for keeps, reply in ((False, "Yes."), (True, "<think>long</think>Yes.")):
        told = told_of_branch(
            store, chat, conversations._shelf, attached(store, chat), keeps_reasoning=keeps
        )
        assert [one.content for one in told.messages] == ["<think>mine</think>", reply]


def test_the_next_question_reads_only_the_last_reply_anew(start: Start) -> None:
    """C21: what was in the cache with its reasoning is cropped to what is still the same."""
    conversations = start()
    store, chat = conversations._store, conversations.new_chat()
    for number in range(3):
        live = conversations.ask(chat, f"{number} " + "word " * 150)
        assert live.wait_ended(60)
    newest = store.messages(chat)[-1]
    store.fork(chat, newest.parent)
    store.append(chat, "assistant", f"<think>{newest.content}</think>Yes.")
    live = conversations.ask(chat, "And?")
    assert live.wait_ended(60)
    read = [one for one in live.events() if one["type"] == "prefilled"][-1]
    assert read["tokens"] - read["reused_tokens"] < 200 < read["reused_tokens"]


def test_without_reasoning() -> None:
    assert without_reasoning("<think>x</think>y") == "y"


def test_a_masked_reply_has_its_answer_where_it_was() -> None:
    for reply in ("<think>so</think>\n\nYes, 5.", "Yes, 5.", "so\n</think>\nYes, 5."):
        found = masked(reply)
        assert len(found) == len(reply)
        assert found.index("Yes") == reply.index("Yes")
        assert found.strip() == "Yes, 5."
    assert masked("<think>never ends").strip() == ""


def test_any_number_of_blocks_is_told_apart_in_no_time() -> None:
    """An imported chat may have as many as its file is long."""
    began = time.monotonic()
    found = reasoned("<think>a</think> \n" * 100_000 + "Yes.")
    assert time.monotonic() - began < 5  # it was minutes
    assert found.answer == "Yes."
    assert found.reasoning.count("a") == 100_000
