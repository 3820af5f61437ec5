"""The list of chats: what is still there of each, where words stand, and no chat of nothing."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.chat.listing import snippet
from tests.chat.test_conversations import answered

Start = Callable[..., Conversations]


def test_a_chat_is_loaded_then_on_disk_then_only_text(start: Start, data_dir: Path) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "word " * 100))
    (row,) = conversations.chats()
    assert row.kv_bytes > 0
    assert row.read_s
    assert 0 < row.read_s < 60
    until = time.monotonic() + 30
    while not conversations.chats()[0].disk_bytes and time.monotonic() < until:
        time.sleep(0.02)
    conversations = start()
    (row,) = conversations.chats()
    assert (row.kv_bytes, row.num_turns) == (0, 1)
    if row.disk_bytes == 0:  # the files are written by a thread of their own
        pytest.fail("nothing was kept on disk")
    assert row.other_disk_bytes == 0
    conversations = start(dtype="bf16")
    (other,) = conversations.chats()
    assert (other.disk_bytes, other.other_disk_bytes) == (0, row.disk_bytes)
    conversations._forget_kv(chat, goes_on=True)
    (row,) = conversations.chats()
    assert (row.kv_bytes, row.disk_bytes) == (0, 0)
    assert row.read_s


def test_hits_say_where(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "필터청소는 얼마나 자주 하나요?"))
    answered(conversations.edit(chat, 1, "something else"))
    (row,) = conversations.chats("터청소")
    (hit,) = row.hits
    assert hit.snippet == (("필", False), ("터청소", True), ("는 얼마나 자주 하나요?", False))
    assert (hit.turn, hit.role) == (1, "user")
    assert conversations.history(chat)[0].text == "something else"
    assert conversations.show(chat, hit.message) == 1
    assert conversations.history(chat)[0].text.startswith("필터청소")
    assert conversations.chats("nowhere") == []


def test_a_chat_of_nothing_is_not_listed_and_goes(start: Start, tmp_path: Path) -> None:
    conversations = start()
    empty = conversations.new_chat()
    assert conversations.chats() == []
    named = conversations.new_chat()
    conversations.rename(named, "named")
    asked = conversations.new_chat()
    answered(conversations.ask(asked, "hello"))
    bad = conversations.new_chat()
    file = tmp_path / "bad.pdf"
    file.write_bytes(b"no pdf at all")
    conversations.add_document(bad, file, "bad.pdf")
    conversations.wait_documents(bad)
    assert {row.id for row in conversations.chats()} == {named, asked}
    assert [conversations.drop_if_nothing(one) for one in (empty, bad, named, asked)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert {row.id for row in conversations.chats()} == {named, asked}
    assert conversations._store.verify() == []


def test_snippets_stand_around_the_first_word() -> None:
    text = "a " * 50 + "needle  in\na\thaystack " + "b " * 100
    pieces = snippet(text, ["needle", "hay"])
    line = "".join(piece for piece, _ in pieces)
    assert line.startswith("… a ")
    assert line.endswith(" …")
    assert len(line) < 130
    assert [piece for piece, is_word in pieces if is_word] == ["needle", "hay"]
    assert snippet("short", ["nothing"]) == (("short", False),)
    assert snippet("a (b) [c", ["(b)", "[c"]) == (
        ("a ", False),
        ("(b)", True),
        (" ", False),
        ("[c", True),
    )
