"""A summary in the place of turns that no longer fit: once, kept, and never at an answer's cost."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvchat.chat.arrange import SUMMARY
from kvchat.chat.conversations import Conversations
from kvchat.chat.summarizer import Summarizer
from kvchat.chat.template import ChatMessage, render
from kvchat.engine.events import Done, Event, Failed, Figures, Priority, Request
from kvchat.errors import OutOfMemory
from tests.chat.templates import ALL
from tests.chat.test_conversations import answered, ended
from tests.chat.test_documents_in_chats import prompt_text
from tests.chat.test_over_the_limit import LIMIT, SYSTEM, engine_of
from tests.tiny import tiny_tokenizer

Start = Callable[..., Conversations]
LADDER = ("drop_idle", "shrink_chunk", "summarize")
HEAD = "[Summary of earlier messages that no longer fit]"
Submit = Callable[[Request], Iterator[Event]]


@pytest.fixture
def talks(start: Start) -> Conversations:
    usual = {"system_text": SYSTEM, "prefill_chunk": 32, "ladder": LADDER, "max_new_tokens": 6}
    budget = engine_of(start()).costs.needed_bytes(LIMIT, 32)
    return start(memory_budget=budget, **usual)


def watched(talks: Conversations, made: list[Request]) -> Submit:
    """Notes the requests for summaries, which belong to no span."""
    submit = talks._worker.submit

    def watch(request: Request) -> Iterator[Event]:
        if not request.spans:
            made.append(request)
        return submit(request)

    talks._worker.submit = watch  # type: ignore[method-assign]
    return submit


def ask(talks: Conversations, chat: str, number: int) -> dict[str, Any]:
    live = answered(talks.ask(chat, f"Tell me something of the sea, number {number}."))
    assert live.figures is not None
    assert live.figures["prompt_tokens"] + live.figures["reply_tokens"] <= LIMIT
    return live.figures


def rows(talks: Conversations, chat: str, *codes: str) -> list[dict[str, Any]]:
    return [row for row in talks.ledger_since(chat, 0) if row["code"] in codes]


def test_the_oldest_turns_are_summarized_once_until_the_cut_moves_on(talks: Conversations) -> None:
    made: list[Request] = []
    watched(talks, made)
    chat = talks.new_chat()
    sizes = []
    for number in range(19):
        ask(talks, chat, number)
        told = prompt_text(talks)
        assert told.index(SYSTEM) < told.index("user")
        cuts = rows(talks, chat, "summarize", "truncate_turns", "no_summary")
        assert {row["code"] for row in cuts} <= {"summarize"}
        assert (HEAD in told) == bool(cuts)
        sizes.append(len(made))
    assert len(cuts) == len(talks._store.summaries(chat)) > 1
    assert len(set(sizes)) == 1 + len(cuts)  # each was written once, and served many turns
    history = talks.history(chat)
    gone = [one.turn for one in history if one.left_out]
    assert [one.turn for one in history if one.summary] == gone == cuts[-1]["turn_numbers"]
    (shown,) = {one.summary for one in history if one.left_out}
    assert f"{HEAD}\n{shown}\n" in prompt_text(talks)  # what the person can read is what it sees
    assert cuts[-1]["arguments"]["summary_tokens"] > 0
    assert cuts[-1]["lost_tokens"] == cuts[-1]["arguments"]["tokens"]
    spans = talks.frame(chat)["spans"]
    assert [span["kind"] for span in spans][:3] == ["system", "summary", "turn"]
    assert spans[2]["turn"] == gone[-1] + 1
    decode = engine_of(talks).loaded.tokenizer.decode
    written = [str(decode(request.prompt_ids)) for request in made]
    assert "What was said before" not in written[0]
    assert "number 0." in written[0]
    texts = [one.text for one in talks._store.summaries(chat).values()]
    later = [text for text in written if f"in short: {texts[-1]}" in text]
    assert later  # the second cut tells the first summary, and only what was new
    assert not any("number 0." in text for text in written[1:])
    # all of it was told, once: where it does not fit at a time, step by step
    assert [sum(f"number {n}." in text for text in written) for n in range(gone[-1])] == [1] * gone[
        -1
    ]


def test_it_serves_after_a_restart_and_is_taken_back_like_any_cut(
    talks: Conversations, start: Start
) -> None:
    chat = talks.new_chat()
    number = 0
    while not rows(talks, chat, "summarize"):
        number += 1
        ask(talks, chat, number)
    before = talks.history(chat)
    assert any(one.summary for one in before)
    settings = {"ladder": LADDER, "max_new_tokens": 6, "prefill_chunk": 32}
    again = start(memory_budget=talks.settings.memory_budget, **settings)
    assert again.history(chat) == before
    made: list[Request] = []
    watched(again, made)
    live = answered(again.regenerate(chat, number))
    assert made == []
    assert HEAD in prompt_text(again)
    assert live.error is None
    newest = rows(again, chat, "summarize")[-1]
    assert again.undo(chat, newest["number"]).tokens > 0
    answered(again.ask(chat, "What was that about the sea?"))
    back = again.history(chat)
    assert not set(newest["turns"]) & {one.user_hash for one in back if one.left_out}
    assert any(one.summary for one in back)  # others went for them
    again.apply({"memory_budget": None})
    answered(again.ask(chat, "And now?"))
    assert HEAD not in prompt_text(again)
    assert not any(one.left_out or one.summary for one in again.history(chat))
    again.delete_turn(chat, 2)
    assert again._store.summaries(chat) == {}


def nothing() -> Event:
    return Done("  ", (), "stop", Figures(1, 0, 0, 0.0, 0.0, 0.0, 0, {}))


def no_memory() -> Event:
    return Failed(OutOfMemory("out_of_memory"), "", ())


@pytest.mark.parametrize(
    ("last", "reason"), [(nothing, "nothing_written"), (no_memory, "out_of_memory")]
)
def test_without_a_summary_the_turns_are_left_out_and_it_is_said(
    talks: Conversations, last: Callable[[], Event], reason: str
) -> None:
    made: list[Request] = []
    submit = watched(talks, made)

    def fail(request: Request) -> Iterator[Event]:
        if request.spans:
            return submit(request)
        made.append(request)
        return iter([last()])

    talks._worker.submit = fail  # type: ignore[method-assign]
    chat = talks.new_chat()
    for number in range(16):
        ask(talks, chat, number)
    assert made
    assert HEAD not in prompt_text(talks)
    assert {row["reason"] for row in rows(talks, chat, "no_summary")} == {reason}
    assert rows(talks, chat, "summarize") == []
    assert rows(talks, chat, "truncate_turns")
    assert any(one.left_out and one.summary is None for one in talks.history(chat))
    talks._worker.submit = submit  # type: ignore[method-assign]
    ask(talks, chat, 17)  # the next one is written
    assert all(one.summary for one in talks.history(chat) if one.left_out)


def test_a_stop_while_a_summary_is_written_ends_the_answer(
    talks: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = talks.new_chat()
    written = Summarizer._answered

    def stopped(self: Summarizer, request: Request) -> str | None:
        assert self._live.status == "summarizing"
        self._live.stop()
        return written(self, request)

    monkeypatch.setattr(Summarizer, "_answered", stopped)
    for number in range(16):
        live = ended(talks.ask(chat, f"Tell me something of the sea, number {number}."))
        if live.finish_reason == "cancelled":
            break
    assert (live.status, live.finish_reason) == ("stopped", "cancelled")
    assert talks.history(chat)[-1].reply is None
    assert rows(talks, chat, "no_summary") == []
    assert talks._store.summaries(chat) == {}
    monkeypatch.undo()
    ask(talks, chat, 99)


@pytest.mark.parametrize("template", sorted(ALL))
def test_templates_take_a_summary_at_any_place(template: str) -> None:
    """C17: also after a pinned turn, or one without a reply; roles go on by turns."""
    said = [
        ChatMessage("user", "first question", "q1"),
        ChatMessage("assistant", "first answer", "r1"),
        ChatMessage("user", "unanswered question", "q2"),
        ChatMessage("user", "third question", "q3"),
        ChatMessage("assistant", "third answer", "r3"),
        ChatMessage("user", "the question", "q4"),
    ]
    turns = [0, 2, 3, 5]
    for number, place in enumerate(turns):
        summary = ChatMessage("user", "what was said, in short", SUMMARY)
        numbers: list[int | None] = [1, 2, 3, 4]
        numbers.insert(number, None)
        messages = [*said[:place], summary, *said[place:]]
        prompt = render(
            tiny_tokenizer(), ALL[template], "Be brief.", (), messages, turn_numbers=numbers
        )
        text = str(tiny_tokenizer().decode(prompt.token_ids))
        assert text.count("what was said, in short") == 1
        for one in said:
            assert one.content in text
        spans = [span for span in prompt.spans if span.kind in ("turn", "summary")]
        assert [span.turn for span in spans] == numbers
        (there,) = [span for span in spans if span.kind == "summary"]
        shown = str(tiny_tokenizer().decode(prompt.token_ids[there.start : there.stop]))
        assert "what was said, in short" in shown


def test_a_summary_that_is_written_anew_is_told(talks: Conversations) -> None:
    """Deleting a turn takes the summaries along: whichever turns are left out then, of what now
    stands for them there is an entry.
    """
    made: list[Request] = []
    watched(talks, made)
    chat = talks.new_chat()
    number = 0
    while not rows(talks, chat, "summarize"):
        ask(talks, chat, number)
        number += 1
    told, written = rows(talks, chat, "summarize"), len(made)
    talks.delete_turn(chat, told[-1]["turn_numbers"][0])
    ask(talks, chat, number)
    assert len(made) > written
    again = rows(talks, chat, "summarize", "truncate_turns")
    assert len(again) == len(told) + 1
    with talks._store._database.write() as connection:  # the cut stays, as it may after a deletion
        connection.execute("DELETE FROM summaries")
    ask(talks, chat, number + 1)
    newest = rows(talks, chat, "summarize", "truncate_turns")
    assert len(newest) == len(again) + 1
    assert (newest[-1]["code"], newest[-1]["reason"]) == ("summarize", "summary_gone")
    assert newest[-1]["turns"] == again[-1]["turns"]
    ask(talks, chat, number + 2)
    later = rows(talks, chat, "summarize", "truncate_turns")
    assert [one["reason"] for one in later].count("summary_gone") == 1, "told once"


@pytest.mark.parametrize("listed", [False, True])
def test_requests_of_programs_get_summaries_too(talks: Conversations, listed: bool) -> None:
    """Written once, and found again by the messages that a program sends each time."""
    made: list[Request] = []
    watched(talks, made)
    talks.apply({"list_api_chats": listed})
    said = [{"role": "system", "content": SYSTEM}]
    for number in range(12):
        said.append({"role": "user", "content": f"Tell me something of the sea, number {number}."})
        said.append({"role": "assistant", "content": f"It is deep and wide in place {number}."})
    sizes = []
    for number in range(2):
        said.append({"role": "user", "content": f"And of the harbour, number {number}?"})
        live = answered(talks.complete(said, {}))
        assert HEAD in prompt_text(talks)
        (row,) = [one for one in live.ledger if one["code"] in ("summarize", "truncate_turns")]
        assert row["code"] == "summarize"
        sizes.append(len(made))
        said.append({"role": "assistant", "content": live.text})
    assert sizes[0] > 0
    assert sizes[1] == sizes[0], "nothing new was left out"
    assert {one.priority for one in made} == {Priority.API}
