"""`verify` finds what someone changed behind the store's back."""

import sqlite3
from pathlib import Path

import pytest

from kvchat.store.store import Attachment, Generation, Store

TAMPERING = {
    "content": ("UPDATE messages SET content = 'other' WHERE turn = 2", "should be named"),
    "attachment": ("UPDATE attachments SET text = 'other'", "should be named"),
    "attachment gone": ("DELETE FROM attachments", "should be named"),
    "parent": ("UPDATE messages SET parent = NULL WHERE turn = 2", "should be named"),
    "turn": ("UPDATE messages SET turn = 9 WHERE turn = 2", "wrong turn number"),
    "tip": ("UPDATE branches SET tip = (SELECT parent FROM messages WHERE hash = tip)", "disagree"),
    "reached": ("DELETE FROM reached WHERE number = (SELECT max(number) FROM reached)", "disagree"),
    "orphan": ("INSERT INTO messages VALUES ('x', NULL, 'user', '', 1, 0)", "in no chat"),
    "message gone": ("DELETE FROM messages WHERE turn = 1 AND role = 'user'", "missing in"),
    "branch": ("UPDATE chats SET branch = 77", "branch of another chat"),
    "ledger": ("UPDATE ledger_turns SET message = 'x'", "ledger entry"),
    "generation": ("UPDATE generations SET message = 'x'", "missing in reached"),
}


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found(tmp_path: Path, what: str) -> None:
    statement, line = TAMPERING[what]
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
        brought = [Attachment("d", "n", "whole", (), "text")]
        question = store.append(chat, "user", "q1", brought)
        reply = store.append(chat, "assistant", "r1")
        store.append(chat, "user", "q2")
        store.add_generation(chat, Generation(reply.hash, (), "stop", {}, [], "", 0.0))
        store.add_ledger(chat, "retry", {}, [question.hash])
        assert store.verify() == []
    with sqlite3.connect(tmp_path / "kvchat.sqlite3") as other:  # foreign keys are off here
        assert other.execute(statement).rowcount > 0
    other.close()
    with Store(tmp_path) as store:
        assert any(line in problem for problem in store.verify())
