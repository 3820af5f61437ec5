"""One SQLite database, one connection, one lock: every write happens whole or not at all.

Knows no table. SQLite's own errors become StoreErrors here; a broken constraint is an error of ours
and stays one.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvchat.errors import StoreError
from kvchat.store.folder import owner_only, unusable
from kvchat.store.schema import is_current, migrate

FILE_NAME = "kvchat.sqlite3"


class Database:
    """Opened and migrated. Thread-safe; `read` and `write` do not nest. `num_synced`: synced writes
    since then.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.num_synced = 0
        self._lock = threading.Lock()
        try:
            _made_private(file)
        except OSError as error:
            raise unusable(file.parent, error) from None
        with _said(file):
            self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
            try:
                _prepared(self._connection)
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _said(self.file):
            yield self._connection

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end of the block, undone if anything is raised in it.

        `synced` waits for the disk, and so outlives a power cut; without it a commit still outlives
        the end of the program, however that came.
        """
        with self._lock, _said(self.file):
            connection = self._connection
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
                self.num_synced += synced
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it already
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@contextmanager
def looked_at(file: Path) -> Iterator[sqlite3.Connection | None]:
    """The database only to be read, also beside the program that has it open; makes no file.

    None where there is none, or one that another version wrote.
    """
    if not file.is_file():
        yield None
        return
    # With no log beside it nobody has it open, and SQLite need not make one.
    how = "mode=ro" if file.with_name(f"{file.name}-wal").exists() else "mode=ro&immutable=1"
    with _said(file):
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True)
        try:
            connection.row_factory = sqlite3.Row
            yield connection if is_current(connection) else None
        finally:
            connection.close()


def _made_private(file: Path) -> None:
    """Made before SQLite makes it: its -wal and -shm files get the rights of the database."""
    os.close(owner_only(file))


def _prepared(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(
        "PRAGMA secure_delete = ON"
    )  # what a person deletes is not left in free pages
    connection.execute("PRAGMA busy_timeout = 5000")
    migrate(connection)


@contextmanager
def _said(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        sentence = _sentence(file, error)
        if sentence is None:
            raise
        raise sentence from error


def _sentence(file: Path, error: sqlite3.DatabaseError) -> StoreError | None:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the low byte is the kind of the error
        case sqlite3.SQLITE_FULL:
            return StoreError("store_full", folder=file.parent)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreError("store_damaged", file=file)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError("locked", folder=file.parent)
        case (
            sqlite3.SQLITE_IOERR
            | sqlite3.SQLITE_READONLY
            | sqlite3.SQLITE_CANTOPEN
            | sqlite3.SQLITE_PERM
        ):
            return StoreError("folder_unusable", folder=file.parent, why=str(error))
        case _:
            return None
