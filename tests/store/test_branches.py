"""The tree of messages: named by content and parent, forked, switched, deleted by turns."""

import hashlib
import json
import time
from itertools import pairwise

import pytest

from kvchat.errors import StoreError
from kvchat.store import tree
from kvchat.store.store import Attachment, Generation, Message, Store


def texts(store: Store, chat: str) -> list[str]:
    return [message.content for message in store.messages(chat)]


def talk(store: Store, chat: str, *contents: str) -> list[Message]:
    """Appends the texts by turns, beginning with the user."""
    roles = ("user", "assistant")
    return [store.append(chat, roles[i % 2], text) for i, text in enumerate(contents)]  # type: ignore[arg-type]


@pytest.fixture
def chat(store: Store) -> str:
    return store.new_chat("", "").id


def test_a_message_is_named_by_content_and_parent(store: Store, chat: str) -> None:
    brought = Attachment("sha", "a.pdf", "passages", (2, 5), "[text]")
    first = store.append(chat, "user", "질문", [brought])
    second = store.append(chat, "assistant", "답")
    content = ["user", "질문", [["sha", "a.pdf", "passages", [2, 5], "[text]"]]]
    named = json.dumps([None, *content], separators=(",", ":"))
    assert first.hash == hashlib.sha256(named.encode()).hexdigest()
    assert (first.parent, second.parent) == (None, first.hash)
    assert store.messages(chat) == [first, second]


def test_the_same_words_in_the_same_place_have_one_name(store: Store, chat: str) -> None:
    other = store.new_chat("", "").id
    ours, theirs = talk(store, chat, "q", "r", "q"), talk(store, other, "q", "r", "Q")
    assert [one.hash for one in ours[:2]] == [one.hash for one in theirs[:2]]
    assert len({one.hash for one in ours + theirs}) == 4
    text = Attachment("d", "n", "whole", (), "text")
    assert store.append(chat, "user", "x", [text]).hash != store.append(other, "user", "x").hash


def test_an_edit_is_a_fork_before_the_message(store: Store, chat: str) -> None:
    question, _, later, _ = talk(store, chat, "q1", "r1", "q2", "r2")
    store.fork(chat, later.parent)
    assert texts(store, chat) == ["q1", "r1"]
    edited = store.append(chat, "user", "q2, edited")
    assert texts(store, chat) == ["q1", "r1", "q2, edited"]
    assert store.siblings(chat, edited.hash) == [later.hash, edited.hash]
    assert store.siblings(chat, question.hash) == [question.hash]
    store.switch(chat, later.hash)
    assert texts(store, chat) == ["q1", "r1", "q2", "r2"]


def test_an_edit_of_the_first_message_starts_anew(store: Store, chat: str) -> None:
    [first, *_] = talk(store, chat, "q1", "r1")
    store.fork(chat, None)
    again = store.append(chat, "user", "q1, edited")
    assert texts(store, chat) == ["q1, edited"]
    assert store.siblings(chat, first.hash) == [first.hash, again.hash]


def test_regenerating_is_a_fork_at_the_question(store: Store, chat: str) -> None:
    _, old, *_ = talk(store, chat, "q1", "r1", "q2", "r2")
    store.fork(chat, old.parent)
    new = store.append(chat, "assistant", "r1, again")
    assert texts(store, chat) == ["q1", "r1, again"]
    assert store.siblings(chat, new.hash) == [old.hash, new.hash]
    assert store.replies(chat, old.parent or "") == [old.hash, new.hash]
    store.append(chat, "user", "q2 of the other branch")
    store.switch(chat, old.hash)
    assert texts(store, chat) == ["q1", "r1", "q2", "r2"]
    store.switch(chat, new.hash)
    assert texts(store, chat) == ["q1", "r1, again", "q2 of the other branch"]


def test_regenerating_to_the_same_words_shows_what_followed_them(store: Store, chat: str) -> None:
    _, old, *_ = talk(store, chat, "q1", "r1", "q2", "r2")
    store.fork(chat, old.parent)
    again = store.append(chat, "assistant", "r1")
    assert again == old
    assert texts(store, chat) == ["q1", "r1", "q2", "r2"]
    assert store.siblings(chat, again.hash) == [again.hash]


def test_a_fork_that_nothing_came_of_can_be_dropped(store: Store, chat: str) -> None:
    question, reply, *_ = talk(store, chat, "q1", "r1", "q2", "r2")
    for place in (None, question.hash, reply.hash):
        store.fork(chat, place)
        store.drop_empty_fork(chat)
        assert texts(store, chat) == ["q1", "r1", "q2", "r2"]
    store.fork(chat, question.hash)
    store.start_draft(chat, question.hash)
    store.drop_empty_fork(chat)
    assert texts(store, chat) == ["q1"]
    store.finish_draft(chat, "again")
    assert texts(store, chat) == ["q1", "again"]


def test_switch_shows_the_branch_that_was_talked_on_last(store: Store, chat: str) -> None:
    _, reply, second, _ = talk(store, chat, "q1", "r1", "q2", "r2")
    store.fork(chat, reply.hash)
    talk(store, chat, "q2b", "r2b")
    store.fork(chat, None)
    talk(store, chat, "other")
    store.switch(chat, reply.hash)
    assert texts(store, chat)[-1] == "r2b"
    store.switch(chat, second.hash)
    store.append(chat, "user", "newest")
    store.fork(chat, None)
    store.switch(chat, reply.hash)
    assert texts(store, chat)[-1] == "newest"


def test_a_message_of_another_chat_is_not_there(store: Store, chat: str) -> None:
    other = store.new_chat("", "").id
    [foreign] = talk(store, other, "elsewhere")
    for call in (
        lambda: store.fork(chat, foreign.hash),
        lambda: store.siblings(chat, foreign.hash),
        lambda: store.switch(chat, foreign.hash),
        lambda: store.delete_turn(chat, foreign.hash),
        lambda: store.start_draft(chat, foreign.hash),
        lambda: store.pin(chat, foreign.hash),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "message_gone"
    with pytest.raises(StoreError) as caught:
        store.append("no chat", "user", "x")
    assert caught.value.code == "chat_gone"


def test_deleting_a_middle_turn_chains_the_rest_anew(store: Store, chat: str) -> None:
    first, _, second, _, third, last = talk(store, chat, "q1", "r1", "q2", "r2", "q3", "r3")
    figures = {"prompt_tokens": 7}
    store.add_generation(chat, Generation(last.hash, (5, 6), "stop", figures, [], "m", 1.0))
    store.pin(chat, third.hash)
    store.pin(chat, second.hash)
    store.add_ledger(chat, "truncate_turns", {}, [first.hash, second.hash, third.hash])
    store.delete_turn(chat, second.hash)
    left = store.messages(chat)
    assert [one.content for one in left] == ["q1", "r1", "q3", "r3"]
    assert left[2].hash != third.hash
    assert [one.created_at_s for one in left[2:]] == [third.created_at_s, last.created_at_s]
    moved = store.generation(left[3].hash, chat)
    assert moved == Generation(left[3].hash, (5, 6), "stop", figures, [], "m", 1.0)
    assert store.generation(last.hash) is None
    assert store.pins(chat) == {left[2].hash}
    assert store.ledger(chat)[0].turns == (first.hash, left[2].hash)


def test_a_deleted_turn_is_gone_from_every_branch(store: Store, chat: str) -> None:
    _, _, second, old, *_ = talk(store, chat, "q1", "r1", "q2", "r2", "q3", "r3")
    store.fork(chat, second.hash)
    store.append(chat, "assistant", "r2, again")
    store.append(chat, "user", "q4")
    store.delete_turn(chat, second.hash)
    assert texts(store, chat) == ["q1", "r1", "q4"]
    [_, _, fourth] = store.messages(chat)
    versions = store.siblings(chat, fourth.hash)
    assert len(versions) == 2
    store.switch(chat, versions[0])
    assert texts(store, chat) == ["q1", "r1", "q3", "r3"]
    with pytest.raises(StoreError):
        store.switch(chat, old.hash)


def test_deleting_in_one_chat_leaves_the_other_as_it_was(store: Store, chat: str) -> None:
    other = store.new_chat("", "").id
    first, *_ = talk(store, chat, "q1", "r1", "q2", "r2")
    before = talk(store, other, "q1", "r1", "q2", "r2")
    for one in (chat, other):
        store.add_generation(one, Generation(before[3].hash, (), "stop", {}, [], one, 0.0))
    store.delete_turn(chat, first.hash)
    assert [one.hash for one in store.messages(other)] == [one.hash for one in before]
    theirs, ours = store.generation(before[3].hash), store.generation(store.messages(chat)[1].hash)
    assert theirs is not None
    assert theirs.model == other
    assert ours is not None
    assert ours.model == chat


def test_deleting_a_question_without_a_reply_keeps_the_next(store: Store, chat: str) -> None:
    stopped = store.append(chat, "user", "stopped")
    talk(store, chat, "q", "r")
    store.delete_turn(chat, stopped.hash)
    assert texts(store, chat) == ["q", "r"]


def test_deleting_the_only_turn_leaves_an_empty_chat(store: Store, chat: str) -> None:
    [question, _] = talk(store, chat, "q", "r")
    store.delete_turn(chat, question.hash)
    assert store.messages(chat) == []
    assert store.chat(chat).num_turns == 0
    talk(store, chat, "q", "r")
    assert texts(store, chat) == ["q", "r"]


def test_a_new_name_may_be_the_old_one_of_another_message(store: Store, chat: str) -> None:
    """a a b and a b, less the first a: the second a now has the first one's name."""
    first, second, deep = (store.append(chat, "user", text) for text in "aab")
    store.fork(chat, first.hash)
    shallow = store.append(chat, "user", "b")
    store.pin(chat, first.hash)
    store.pin(chat, deep.hash)
    entries = [store.add_ledger(chat, "retry", {}, [one.hash]) for one in (second, deep, shallow)]
    store.delete_turn(chat, first.hash)
    assert texts(store, chat) == ["b"]
    [left] = store.messages(chat)
    store.switch(chat, first.hash)
    assert texts(store, chat) == ["a", "b"]
    assert [one.hash for one in store.messages(chat)] == [first.hash, shallow.hash]
    assert store.pins(chat) == {shallow.hash}
    turns = [entry.turns for entry in store.ledger(chat, entries[0].number - 1)]
    assert turns == [(first.hash,), (shallow.hash,), (left.hash,)]


def test_attachments_are_chained_along(store: Store, chat: str) -> None:
    brought = (Attachment("d", "a.pdf", "passages", (1,), "[text]"),)
    [first, _] = talk(store, chat, "q1", "r1")
    store.append(chat, "user", "q2", brought)
    store.delete_turn(chat, first.hash)
    [message] = store.messages(chat)
    assert message.attachments == brought


def test_a_thousand_turns(store: Store, chat: str) -> None:
    """Reading and deleting stay far below what a person notices, whatever else the machine does."""
    with store._database.write(synced=False) as connection:
        parent = None
        for number in range(2000):
            role = "user" if number % 2 == 0 else "assistant"
            parent = tree.insert(connection, chat, parent, role, f"{number} " * 50, (), 0.0).hash
        tree.move_tip(connection, tree.current_branch(connection, chat)[0], parent)
    begun = time.perf_counter()
    second = store.messages(chat)[2]
    read_s = time.perf_counter() - begun
    store.siblings(chat, second.hash)
    store.delete_turn(chat, second.hash)
    assert len(store.messages(chat)) == 1998
    assert read_s < 0.5
    assert time.perf_counter() - begun < 3.0


def test_the_version_is_another_one_after_every_change(store: Store, chat: str) -> None:
    """Whoever keeps what it read of a chat asks for no more than this."""
    store.attach_document(chat, "d", "d.pdf")
    first, reply, second, last = talk(store, chat, "q1", "r1", "q2", "r2")
    generation = Generation(reply.hash, (), "stop", {}, [], "m", 1.0)
    changes = [
        lambda: store.append(chat, "user", "q3"),
        lambda: store.add_ledger(chat, "retry", {}),
        lambda: store.add_generation(chat, generation),
        lambda: store.pin(chat, first.hash),
        lambda: store.unpin(chat, first.hash),
        lambda: store.pin_document(chat, "d", 3),
        lambda: store.pin_document(chat, "d"),
        lambda: store.detach(chat, "d"),
        lambda: store.fork(chat, second.hash),
        lambda: store.append(chat, "assistant", "r2, again"),
        lambda: store.switch(chat, last.hash),
        lambda: store.delete_turn(chat, second.hash),
    ]
    seen = [store.version(chat)]
    for change in changes:
        change()
        seen.append(store.version(chat))
        assert seen[-1] == store.version(chat)
    for before, after in pairwise(seen):
        assert before != after
    store.delete(chat)
    with pytest.raises(StoreError):
        store.version(chat)


def test_a_chat_has_no_version_twice(store: Store, chat: str) -> None:
    """What was pinned and is again may have been read in between."""
    (turn,) = talk(store, chat, "hello")
    seen = [store.version(chat)]
    for _ in range(2):
        for change in (store.pin, store.unpin):
            change(chat, turn.hash)
            seen.append(store.version(chat))
    assert len(set(seen)) == len(seen)
    assert store.version(chat) == store.version(chat)
