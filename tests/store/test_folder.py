"""The data folder: one program at a time, known formats, its owner's eyes only, a full disk."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.store.folder import FORMAT
from kvchat.store.records import DocumentFile, DocumentPage
from kvchat.store.schema import MIGRATIONS
from kvchat.store.store import Store

HOLDER = """
import sys, time
from pathlib import Path
from kvchat.store.store import Store
store = Store(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def refused(folder: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        Store(folder)
    for lang in ("en", "ko"):
        assert str(folder) in caught.value.message(lang)  # type: ignore[arg-type]
        assert "\n" not in caught.value.line(lang)  # type: ignore[arg-type]
    return caught.value


def test_one_program_at_a_time_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert refused(tmp_path).code == "locked"
    holder.kill()
    holder.wait()
    with Store(tmp_path):
        assert refused(tmp_path).code == "locked"
    Store(tmp_path).close()


def test_a_second_opening_leaves_the_first_alone(store: Store, tmp_path: Path) -> None:
    chat = store.new_chat("", "").id
    assert refused(tmp_path / "kept").code == "locked"
    assert refused(tmp_path / "kept").code == "locked"
    store.append(chat, "user", "still here")


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps rights otherwise")
def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(tmp_path / "new") as store:
            store.new_chat("", "")
            modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "new").iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert {"kvchat.sqlite3", "kvchat.sqlite3-wal", "kvchat.lock", "format"} <= modes.keys()
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps rights otherwise")
def test_rights_that_became_too_wide_are_narrowed(tmp_path: Path) -> None:
    Store(tmp_path).close()
    file = tmp_path / "kvchat.sqlite3"
    file.chmod(0o644)
    Store(tmp_path).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_folder_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Store(tmp_path).close()
    (tmp_path / "format").write_text(f"{FORMAT + 1}\n")
    before = (tmp_path / "kvchat.sqlite3").read_bytes()
    assert refused(tmp_path).code == "folder_too_new"
    assert (tmp_path / "kvchat.sqlite3").read_bytes() == before


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        chat = store.new_chat("title", "")
    newer = sqlite3.connect(tmp_path / "kvchat.sqlite3")
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    assert refused(tmp_path).code == "folder_too_new"
    newer = sqlite3.connect(tmp_path / "kvchat.sqlite3")
    assert newer.execute("SELECT title FROM chats").fetchall() == [("title",)]
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    newer.close()
    with Store(tmp_path) as store:
        assert store.chat(chat.id) == chat


@pytest.mark.parametrize("content", ["", "two", "1.5"])
def test_a_format_that_is_no_number(tmp_path: Path, content: str) -> None:
    Store(tmp_path).close()
    (tmp_path / "format").write_text(content)
    assert refused(tmp_path).code == "store_damaged"


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "kvchat.sqlite3").write_bytes(b"not a database, " * 400)
    assert refused(tmp_path).code == "store_damaged"
    assert (tmp_path / "kvchat.sqlite3").read_bytes() == b"not a database, " * 400
    (tmp_path / "kvchat.sqlite3").unlink()
    Store(tmp_path).close()  # the refusal gave the lock back


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file").code == "folder_unusable"
    assert refused(tmp_path / "file" / "below").code == "folder_unusable"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert refused(tmp_path / "new").code == "folder_unusable"
    tmp_path.chmod(0o700)


def test_a_full_disk_says_so_and_half_writes_nothing(store: Store) -> None:
    """SQLite's own limit on pages stands for the disk's: the same error, at the same places."""
    chat = store.new_chat("", "").id
    question = store.append(chat, "user", "question")
    with store._database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    store.start_draft(chat, question.hash)
    long = "no room for this " * 10_000
    file = DocumentFile("sha", "name", "path")
    for call in (
        lambda: store.append(chat, "assistant", long),
        lambda: store.write_draft(chat, long, range(10)),
        lambda: store.finish_draft(chat, long),
        lambda: store.new_chat("", long),
        lambda: store.add_document(file, [DocumentPage(1, None, "text", long)]),
        lambda: store.save_settings({"system_text": long}),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "store_full"
        assert store.verify() == []
        assert store.messages(chat) == [question]
    assert (store.documents(), store.settings(), len(store.chats())) == ([], {}, 1)
    with store._database.read() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    store.write_draft(chat, "room again", [1])
    reply = store.finish_draft(chat, long)
    assert reply is not None
    assert store.messages(chat) == [question, reply]


@pytest.mark.parametrize(("code", "opens"), [("store_full", True), ("store_damaged", False)])
def test_a_draft_waits_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, opens: bool
) -> None:
    with Store(tmp_path) as store:
        chat = store.new_chat("", "").id
        question = store.append(chat, "user", "question")
        store.start_draft(chat, question.hash)
        store.write_draft(chat, "half", [1])

    def fails(store: Store) -> None:
        raise StoreError(code, folder=tmp_path, file=tmp_path)

    monkeypatch.setattr(Store, "_conclude_interrupted", fails)
    if opens:
        with Store(tmp_path) as store:
            assert store.messages(chat) == [question]
    else:
        assert refused(tmp_path).code == code
    monkeypatch.undo()
    with Store(tmp_path) as store:
        assert [one.content for one in store.messages(chat)] == ["question", "half"]


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        chat = store.new_chat("title", "")

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE saved_settings")
        connection.execute("UPDATE chats SET title = 'changed'")
        connection.execute("SELECT nothing FROM nowhere")

    monkeypatch.setattr("kvchat.store.schema.MIGRATIONS", (*MIGRATIONS, fails))
    with pytest.raises(sqlite3.OperationalError):
        Store(tmp_path)
    monkeypatch.undo()
    with Store(tmp_path) as store:
        assert store.chat(chat.id) == chat
        assert store.settings() == {}


def test_a_later_step_runs_once_on_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        store.new_chat("title", "")

    def later(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE chats SET title = title || ', later'")

    monkeypatch.setattr("kvchat.store.schema.MIGRATIONS", (*MIGRATIONS, later))
    for _ in range(2):
        with Store(tmp_path) as store:
            assert [one.title for one in store.chats()] == ["title, later"]
