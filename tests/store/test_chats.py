"""Chats: made, listed, searched, renamed, deleted with all that is theirs and nothing else."""

import time
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.store import tree
from kvchat.store.store import Attachment, Generation, Store


def test_a_new_chat_is_empty(store: Store) -> None:
    made = store.new_chat("제목", "Be brief.")
    assert store.chat(made.id) == made
    assert (made.title, made.system_text, made.listed, made.num_turns) == (
        "제목",
        "Be brief.",
        True,
        0,
    )
    assert store.messages(made.id) == []


def test_the_newest_stands_first_and_talking_brings_a_chat_up(store: Store) -> None:
    first, second = store.new_chat("first", ""), store.new_chat("second", "")
    assert [one.id for one in store.chats()] == [second.id, first.id]
    store.append(first.id, "user", "hello")
    assert [one.id for one in store.chats()] == [first.id, second.id]


def test_a_title_moves_no_chat_and_renames_no_message(store: Store) -> None:
    first, second = store.new_chat("first", ""), store.new_chat("second", "")
    message = store.append(first.id, "user", "hello")
    store.append(second.id, "user", "hello")
    store.rename(first.id, "renamed")
    assert [one.title for one in store.chats()] == ["second", "renamed"]
    assert store.messages(first.id) == [message]


def test_unlisted_chats_are_shown_on_request(store: Store) -> None:
    listed, unlisted = store.new_chat("a", ""), store.new_chat("b", "", listed=False)
    assert [one.id for one in store.chats()] == [listed.id]
    assert {one.id for one in store.chats(unlisted=True)} == {listed.id, unlisted.id}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("회의", {"minutes"}),  # two letters, in a message
        ("MINUTES", {"minutes"}),  # letters of either case, in a title
        ("회의 minutes", {"minutes"}),  # one word here, one there
        ("회의 recipe", set()),
        ("100%", {"recipe"}),
        ("0%0", set()),
        ("_", set()),
        ("\\", set()),
        ("earlier", {"recipe"}),  # on a branch that is not shown
        ("  ", {"minutes", "recipe"}),
        ("'; DROP TABLE chats; --", set()),
    ],
)
def test_search(store: Store, query: str, found: set[str]) -> None:
    minutes, recipe = store.new_chat("minutes", ""), store.new_chat("recipe", "")
    store.append(minutes.id, "user", "어제 회의에서 무엇을 정했나요?")
    store.append(recipe.id, "user", "the earlier question")
    store.fork(recipe.id, None)
    store.append(recipe.id, "user", "100% rye?")
    assert {one.title for one in store.chats(query)} == found


def test_turns_are_counted_on_the_branch_that_is_shown(store: Store) -> None:
    chat = store.new_chat("", "").id
    first = store.append(chat, "user", "1")
    store.append(chat, "assistant", "one")
    store.append(chat, "user", "2")
    assert store.chat(chat).num_turns == 2
    store.fork(chat, first.hash)
    assert store.chat(chat).num_turns == 1


def test_deleting_takes_what_is_the_chats_own_and_leaves_what_another_has(store: Store) -> None:
    kept, gone = store.new_chat("kept", "").id, store.new_chat("gone", "").id
    brought = (Attachment("doc", "a.pdf", "whole", (), "[text]"),)
    for chat in (kept, gone):
        store.append(chat, "user", "the same question", brought)
        reply = store.append(chat, "assistant", "the same reply")
        store.add_generation(chat, Generation(reply.hash, (1,), "stop", {}, [], chat, 0.0))
        store.add_ledger(chat, "drop_idle", {"blocks": 1})
    own = store.append(gone, "user", "only here")
    store.start_draft(gone, own.hash)
    before = store.messages(kept)
    store.delete(gone)
    assert store.messages(kept) == before
    generation = store.generation(reply.hash)
    assert generation is not None
    assert generation.model == kept
    assert [entry.chat for entry in store.ledger(None)] == [kept]
    for call in (store.chat, store.messages, store.delete):
        with pytest.raises(StoreError) as caught:
            call(gone)
        assert caught.value.code == "chat_gone"


def test_deleted_text_is_not_left_in_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
        store.append(chat, "user", "ANANAS-7734 " * 100)
        store.delete(chat)
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"ANANAS-7734" not in left


@pytest.mark.parametrize(
    "text", ["<b>'\";--</b>", "👩‍👩‍👧 é", "nul\x00inside", "line\r\nfeed", " \t blanks \n"]
)
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    chat = store.new_chat(text, text).id
    store.append(chat, "user", text, [Attachment("d", text, "passages", (3, 1), text)])
    [message] = store.messages(chat)
    assert message.content == text
    assert message.attachments == (Attachment("d", text, "passages", (3, 1), text),)
    assert (store.chat(chat).title, store.chat(chat).system_text) == (text, text)


def test_half_a_surrogate_pair_does_no_harm(store: Store) -> None:
    """As JSON from a browser may bring it; SQLite and tokenizers can take neither."""
    chat = store.new_chat("\ud83d", "").id
    store.append(chat, "user", "a\ud83d\ude00b\ude00")
    assert store.messages(chat)[0].content == "a😀b\ufffd"
    assert store.chat(chat).title == "\ufffd"


def test_search_in_many_chats_is_quick(store: Store) -> None:
    """300 chats of 12 messages; whatever the machine does beside, a list is not waited for."""
    for number in range(300):
        chat = store.new_chat(f"chat {number}", "").id
        with store._database.write(synced=False) as connection:
            parent = None
            for turn in range(12):
                role = "user" if turn % 2 == 0 else "assistant"
                text = f"{number} {turn} " + "words of a usual message " * 20
                parent = tree.insert(connection, chat, parent, role, text, (), 0.0).hash
            tree.move_tip(connection, tree.current_branch(connection, chat)[0], parent)
    begun = time.perf_counter()
    assert store.chats("없는말") == []
    assert len(store.chats("299")) == 1
    assert time.perf_counter() - begun < 1.0
