"""A chat as one value comes back with its names, branches, figures and pins."""

from pathlib import Path

from kvchat.store.records import Attachment, Generation
from kvchat.store.store import Store

SHA = "a" * 64


def branched(store: Store) -> str:
    """Two versions of the first turn, a further turn under the first one, which is shown."""
    chat = store.new_chat("Two <ways>", "be kind").id
    brought = [Attachment(SHA, "f.pdf", "passages", (3, 1), "text")]
    first = store.append(chat, "user", "q", brought)
    reply = store.append(chat, "assistant", "one")
    made = Generation(reply.hash, (7, 2**32 - 1), "length", {"prompt_tokens": 3}, [], "m", 5.0)
    store.add_generation(chat, made)
    store.append(chat, "user", "next")
    store.fork(chat, first.hash)
    store.append(chat, "assistant", "two")
    store.switch(chat, reply.hash)
    store.pin(chat, first.hash)
    return chat


def test_it_comes_back_as_the_same_chat(store: Store, tmp_path: Path) -> None:
    chat = branched(store)
    there = store.whole(chat)
    assert [one.content for one in there.messages] == ["q", "one", "two", "next"]
    with Store(tmp_path / "other") as other:
        again = other.add_whole(there)
        found = other.whole(again)
        assert found.messages == there.messages
        assert (found.title, found.system_text, found.tips) == (
            there.title, there.system_text, there.tips,
        )  # fmt: skip
        assert found.generations == there.generations
        assert found.pinned == there.pinned
        assert [one.content for one in other.messages(again)] == ["q", "one", "next"]
        assert other.siblings(again, there.messages[1].hash) == [
            one.hash for one in there.messages[1:3]
        ]
        assert other.verify() == []


def test_twice_in_one_folder_are_two_chats_that_share_messages(store: Store) -> None:
    chat = branched(store)
    again = store.add_whole(store.whole(chat))
    assert again != chat
    store.delete(chat)
    assert [one.content for one in store.messages(again)] == ["q", "one", "next"]


def test_an_empty_chat_comes_back_empty(store: Store) -> None:
    chat = store.new_chat("", "").id
    again = store.add_whole(store.whole(chat))
    assert store.messages(again) == []
    assert store.append(again, "user", "q").parent is None


def test_only_documents_that_are_there_are_attached(store: Store) -> None:
    chat = store.new_chat("", "").id
    store.attach_document(chat, SHA, "f.pdf")
    there = store.whole(chat)
    assert there.documents == [(SHA, "f.pdf", True)]
    assert store.chat_documents(store.add_whole(there)) == []
