"""Replies: a draft token by token, then a message and its generation; nothing is lost to a kill."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.store.records import Begun
from kvchat.store.store import Generation, Store

GENERATION = Generation("", (4, 2**31), "stop", {"prompt_tokens": 3}, [{"page": 1}], "m", 9.0)


@pytest.fixture
def chat(store: Store) -> str:
    return store.new_chat("", "").id


def texts(store: Store, chat: str) -> list[str]:
    return [message.content for message in store.messages(chat)]


def test_a_finished_draft_is_a_reply_with_its_generation(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    store.write_draft(chat, "rep", [4])
    assert texts(store, chat) == ["q"]
    reply = store.finish_draft(chat, "reply", GENERATION)
    assert reply is not None
    assert (reply.parent, reply.role, reply.content) == (question.hash, "assistant", "reply")
    assert store.messages(chat) == [question, reply]
    assert store.generation(reply.hash) == Generation(
        reply.hash, (4, 2**31), "stop", {"prompt_tokens": 3}, [{"page": 1}], "m", 9.0
    )


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_reply_without_text_is_dropped(store: Store, chat: str, text: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    assert store.finish_draft(chat, text, GENERATION) is None
    assert store.messages(chat) == [question]


def test_regenerating_in_vain_shows_the_earlier_reply(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.append(chat, "assistant", "earlier")
    store.fork(chat, question.hash)
    store.start_draft(chat, question.hash)
    assert store.finish_draft(chat, "", GENERATION) is None
    assert texts(store, chat) == ["q", "earlier"]


def test_a_reply_stands_under_its_question_whatever_is_shown(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    store.fork(chat, None)
    store.append(chat, "user", "asked in another tab")
    reply = store.finish_draft(chat, "reply", GENERATION)
    assert reply is not None
    assert texts(store, chat) == ["asked in another tab"]
    store.switch(chat, reply.hash)
    assert texts(store, chat) == ["q", "reply"]


def test_a_reply_to_a_question_that_went_on_is_another_version(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    earlier = store.append(chat, "assistant", "meanwhile")
    reply = store.finish_draft(chat, "reply", GENERATION)
    assert reply is not None
    assert store.replies(chat, question.hash) == [earlier.hash, reply.hash]


def test_a_draft_goes_with_its_question(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    store.write_draft(chat, "rep", [4])
    store.delete_turn(chat, question.hash)
    assert store.finish_draft(chat, "reply", GENERATION) is None
    assert store.messages(chat) == []
    with pytest.raises(StoreError) as caught:
        store.write_draft(chat, "repl", [4, 5])
    assert caught.value.code == "message_gone"


def test_a_draft_follows_its_question(store: Store, chat: str) -> None:
    first = store.append(chat, "user", "q1")
    store.append(chat, "assistant", "r1")
    store.start_draft(chat, store.append(chat, "user", "q2").hash)
    store.delete_turn(chat, first.hash)
    store.finish_draft(chat, "r2", GENERATION)
    assert texts(store, chat) == ["q2", "r2"]


def test_a_deleted_chat_has_no_draft(store: Store, chat: str) -> None:
    store.start_draft(chat, store.append(chat, "user", "q").hash)
    store.delete(chat)
    for call in (
        lambda: store.write_draft(chat, "x", [1]),
        lambda: store.finish_draft(chat, "x", GENERATION),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "chat_gone"


def test_the_newest_generation_counts_and_each_chat_has_its_own(store: Store, chat: str) -> None:
    other = store.new_chat("", "").id
    for one, model in ((chat, "old"), (chat, "new"), (other, "theirs")):
        question = store.messages(one)[0] if model == "new" else store.append(one, "user", "q")
        store.fork(one, question.hash)
        store.start_draft(one, question.hash)
        generation = Generation("", (), "stop", {}, [], model, 0.0)
        reply = store.finish_draft(one, "the same", generation)
        assert reply is not None
    newest = store.generation(reply.hash), store.generation(reply.hash, chat)
    assert [one and one.model for one in newest] == ["theirs", "new"]
    assert store.generation("unknown") is None


def test_a_second_draft_concludes_the_first(store: Store, chat: str) -> None:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash, "m")
    store.write_draft(chat, "half", [7])
    store.fork(chat, question.hash)
    store.start_draft(chat, question.hash, "m")
    store.finish_draft(chat, "whole", GENERATION)
    assert texts(store, chat) == ["q", "whole"]
    contents = [store.generation(reply) for reply in store.replies(chat, question.hash)]
    assert [one and one.stop_reason for one in contents] == ["interrupted", "stop"]


def reopened(store: Store) -> Store:
    folder = store._folder.path
    store.close()
    return Store(folder)


def test_a_draft_found_at_the_opening_becomes_an_interrupted_reply(tmp_path: Path) -> None:
    store = Store(tmp_path)
    chat = store.new_chat("", "").id
    question = store.append(chat, "user", "질문")
    store.start_draft(chat, question.hash, "the model")
    for end in range(1, 4):
        store.write_draft(chat, "반쯤 쓴"[: end + 1], list(range(end)))
    with reopened(store) as store:
        [_, reply] = store.messages(chat)
        assert (reply.content, reply.parent) == ("반쯤 쓴", question.hash)
        made = store.generation(reply.hash)
        assert made is not None
        assert (made.stop_reason, made.sampled_ids) == ("interrupted", (0, 1, 2))
        assert (made.model, made.figures) == ("the model", {})
        assert store.verify() == []


def test_sources_of_a_draft_outlive_the_program(tmp_path: Path) -> None:
    store = Store(tmp_path)
    chat = store.new_chat("", "").id
    question = store.append(chat, "user", "q")
    store.cite_draft(chat, [{"page": 1}])  # of no draft: nothing
    store.start_draft(chat, question.hash, "the model")
    store.cite_draft(chat, [{"page": 2, "support": "given"}])
    store.write_draft(chat, "half", [1])
    with reopened(store) as store:
        made = store.generation(store.messages(chat)[-1].hash)
        assert made is not None
        assert made.citations == [{"page": 2, "support": "given"}]


def test_a_fork_that_nothing_came_of_leaves_no_trace(tmp_path: Path) -> None:
    store = Store(tmp_path)
    chat = store.new_chat("", "").id
    for role, text in (("user", "q1"), ("assistant", "r1"), ("user", "q2"), ("assistant", "r2")):
        store.append(chat, role, text)  # type: ignore[arg-type]
    store.fork(chat, store.messages(chat)[0].hash)
    store.start_draft(chat, store.messages(chat)[0].hash)
    assert texts(store, chat) == ["q1"]
    with reopened(store) as store:
        assert texts(store, chat) == ["q1", "r1", "q2", "r2"]
        assert store.verify() == []


def test_a_draft_costs_little_at_any_length(store: Store, chat: str) -> None:
    """The 2,000th token is written as fast as the first: only what is new goes to the disk."""
    store.start_draft(chat, store.append(chat, "user", "q").hash)
    text, ids, took_s = "", [], []
    for number in range(2000):
        text, ids = text + " word", [*ids, number]
        begun = time.perf_counter()
        store.write_draft(chat, text, ids)
        took_s.append(time.perf_counter() - begun)
    early, late = sorted(took_s[:500])[250], sorted(took_s[-500:])[250]
    assert late < 4 * early
    assert late < 0.01


WRITER = """
import sys
from pathlib import Path
from kvchat.store.records import Begun
from kvchat.store.store import Generation, Store

store = Store(Path(sys.argv[1]))
chat = store.chats()[0].id
number = 0
while True:
    question = store.append(chat, "user", f"question {number}")
    print("asked", flush=True)
    store.start_draft(chat, question.hash)
    ids = []
    for token in range(40):
        ids.append(token)
        store.write_draft(chat, " ".join(map(str, ids)), ids)
        print("token", flush=True)
    made = Generation("", tuple(ids), "stop", {}, [], "", 0.0)
    store.finish_draft(chat, " ".join(map(str, ids)), made)
    print("replied", flush=True)
    number += 1
"""


def killed(folder: Path, num_lines: int) -> list[str]:
    """What the writer said before it was killed, which was after so many lines, or soon after."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline().strip() for _ in range(num_lines)]
    writer.kill()  # SIGKILL, or TerminateProcess
    said += writer.stdout.read().split()
    writer.wait()
    return said


@pytest.mark.parametrize("num_lines", [1, 2, 25, 41, 42, 43, 100])
def test_a_killed_program_loses_at_most_the_token_in_flight(tmp_path: Path, num_lines: int) -> None:
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
    said = killed(tmp_path, num_lines)
    num_asked = said.count("asked")
    num_tokens = said[::-1].index("asked") - (said[-1] == "replied")  # of the last question
    with Store(tmp_path) as store:
        assert store.verify() == []
        questions = [one for one in store.messages(chat) if one.role == "user"]
        assert num_asked <= len(questions) <= num_asked + 1
        for number, question in enumerate(questions[:num_asked], 1):
            least = num_tokens if number == num_asked else 40
            replies = store.replies(chat, question.hash)
            made = store.generation(replies[0]) if replies else None
            ids = made.sampled_ids if made else ()
            assert least <= len(ids) <= least + (number == num_asked)
            if made and made.stop_reason == "interrupted":
                assert number == num_asked
                [reply] = [one for one in store.messages(chat) if one.hash == replies[0]]
                assert reply.content == " ".join(map(str, ids))


def test_threads_write_side_by_side(store: Store) -> None:
    """Eight chats at once, each with its own questions, drafts and replies."""
    chats = [store.new_chat(str(number), "").id for number in range(8)]

    def talk(chat: str) -> None:
        for number in range(5):
            store.start_draft(chat, store.append(chat, "user", f"q{number}").hash)
            for end in range(1, 6):
                store.write_draft(chat, "x" * end, list(range(end)))
                store.chats("q")
            store.finish_draft(chat, f"r{number}", GENERATION)

    with ThreadPoolExecutor(len(chats)) as pool:
        list(pool.map(talk, chats))
    for chat in chats:
        assert texts(store, chat) == [f"{who}{n}" for n in range(5) for who in "qr"]


def made_of(ids: tuple[int, ...], stop_reason: str = "length") -> Generation:
    return Generation("", ids, stop_reason, {}, [], "m", 9.0)


def begun_reply(
    store: Store, chat: str, text: str = "half", ids: tuple[int, ...] = (1, 2)
) -> Begun:
    question = store.append(chat, "user", "q")
    store.start_draft(chat, question.hash)
    store.write_draft(chat, text, ids)
    kept = store.finish_draft(chat, text, made_of(ids))
    assert kept
    return Begun(kept.hash, text, ids)


def go_on(store: Store, chat: str, begun: Begun, more: str, ids: tuple[int, ...]) -> None:
    question = store.messages(chat)[-2]
    store.start_draft(chat, question.hash, "m", begun)
    store.write_draft(chat, begun.text + more, (*begun.ids, *ids))


def test_a_reply_that_goes_on_takes_the_place_of_what_was_begun(store: Store, chat: str) -> None:
    begun = begun_reply(store, chat)
    go_on(store, chat, begun, " and half", (3,))
    made = made_of((1, 2, 3), "stop")
    kept = store.finish_draft(chat, "half and half", made)
    assert kept
    assert [one.content for one in store.messages(chat)] == ["q", "half and half"]
    assert store.replies(chat, kept.parent or "") == [kept.hash]
    found = store.generation(kept.hash, chat)
    assert found
    assert (found.stop_reason, found.sampled_ids) == ("stop", (1, 2, 3))
    assert store.verify() == []


def test_a_version_that_goes_on_stays_at_its_place_among_the_others(
    store: Store, chat: str
) -> None:
    begun = begun_reply(store, chat, "one")
    question = store.messages(chat)[0]
    store.fork(chat, question.hash)
    other = store.append(chat, "assistant", "two")
    store.switch(chat, begun.name)
    go_on(store, chat, begun, " more", (3,))
    kept = store.finish_draft(chat, "one more", made_of((1, 2, 3)))
    assert kept
    assert store.replies(chat, question.hash) == [kept.hash, other.hash]
    assert store.messages(chat)[-1] == kept
    assert store.verify() == []


def test_a_program_that_ends_while_a_reply_goes_on_keeps_both_halves(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "kept") as store:
        chat = store.new_chat("t", "").id
        go_on(store, chat, begun_reply(store, chat), " and", (3,))
    with Store(tmp_path / "kept") as store:
        assert [one.content for one in store.messages(chat)] == ["q", "half and"]
        found = store.generation(store.messages(chat)[-1].hash, chat)
        assert found
        assert (found.stop_reason, found.sampled_ids) == ("interrupted", (1, 2, 3))
        assert store.verify() == []


def test_what_goes_on_with_nothing_is_what_it_was(store: Store, chat: str) -> None:
    begun = begun_reply(store, chat)
    go_on(store, chat, begun, "", ())
    store.drop_draft(chat)
    found = store.generation(begun.name, chat)
    assert found
    assert found.stop_reason == "length"
    assert store.messages(chat)[-1].hash == begun.name
    assert store.verify() == []


def test_a_reply_that_something_follows_stays_beside_the_longer_one(
    store: Store, chat: str
) -> None:
    begun = begun_reply(store, chat)
    question = store.messages(chat)[0]
    store.append(chat, "user", "next")
    store.start_draft(chat, question.hash, "m", begun)
    kept = store.finish_draft(chat, "half and more", made_of((1, 2, 3)))
    assert kept
    assert store.replies(chat, question.hash) == [begun.name, kept.hash]
    assert store.verify() == []
