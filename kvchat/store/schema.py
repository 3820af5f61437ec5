"""The tables, one migration a step. `user_version` counts the steps a database has seen.

`reached` holds, for each chat, the messages that one of its branches reaches, numbered in the order
in which the chat came to them; all else that is said of a message in a chat hangs under it.
"""

import sqlite3

from kvchat.errors import StoreError


def _first_tables(connection: sqlite3.Connection) -> None:
    for statement in _FIRST_TABLES.split(";"):
        connection.execute(statement)


_FIRST_TABLES = """
CREATE TABLE messages (
    hash TEXT PRIMARY KEY,
    parent TEXT REFERENCES messages (hash) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    content TEXT NOT NULL,
    turn INTEGER NOT NULL,          -- user messages from the root to here
    created_at_s REAL NOT NULL
);
CREATE INDEX message_children ON messages (parent);
CREATE TABLE attachments (
    message TEXT NOT NULL REFERENCES messages (hash) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    document TEXT NOT NULL,
    name TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('whole', 'passages')),
    passages TEXT NOT NULL,         -- JSON list of numbers
    text TEXT NOT NULL,
    PRIMARY KEY (message, place)
);
CREATE INDEX attachment_documents ON attachments (document);
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    system_text TEXT NOT NULL,
    branch INTEGER NOT NULL REFERENCES branches (id) DEFERRABLE INITIALLY DEFERRED,
    listed INTEGER NOT NULL,
    created_at_s REAL NOT NULL,
    updated_at_s REAL NOT NULL
);
CREATE TABLE branches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tip TEXT REFERENCES messages (hash)     -- NULL: an empty branch
);
CREATE INDEX branch_chats ON branches (chat);
CREATE INDEX branch_tips ON branches (tip);
CREATE TABLE reached (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message TEXT NOT NULL REFERENCES messages (hash) DEFERRABLE INITIALLY DEFERRED,
    UNIQUE (chat, message)
);
CREATE INDEX reached_messages ON reached (message);
CREATE TABLE generations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL,
    message TEXT NOT NULL,
    sampled_ids BLOB NOT NULL,      -- little-endian, 4 bytes each
    stop_reason TEXT NOT NULL,
    figures TEXT NOT NULL,          -- JSON
    citations TEXT NOT NULL,        -- JSON
    model TEXT NOT NULL,
    created_at_s REAL NOT NULL,
    FOREIGN KEY (chat, message) REFERENCES reached (chat, message) ON DELETE CASCADE
);
CREATE INDEX generation_messages ON generations (message, chat);
CREATE INDEX generation_chats ON generations (chat, message);
CREATE TABLE pins (
    chat TEXT NOT NULL,
    message TEXT NOT NULL,
    FOREIGN KEY (chat, message) REFERENCES reached (chat, message) ON DELETE CASCADE
);
CREATE INDEX pin_messages ON pins (chat, message);
CREATE TABLE ledger (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT REFERENCES chats (id) ON DELETE CASCADE,
    at_s REAL NOT NULL,
    code TEXT NOT NULL,
    arguments TEXT NOT NULL,        -- JSON
    bytes_predicted INTEGER NOT NULL,
    bytes_measured INTEGER,
    reason TEXT NOT NULL
);
CREATE INDEX ledger_chats ON ledger (chat, number);
CREATE TABLE ledger_turns (
    entry INTEGER NOT NULL REFERENCES ledger (number) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (entry, place)
);
CREATE TABLE drafts (
    chat TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    model TEXT NOT NULL,
    started_at_s REAL NOT NULL,
    num_characters INTEGER NOT NULL,    -- written down so far
    num_ids INTEGER NOT NULL,
    FOREIGN KEY (chat, user) REFERENCES reached (chat, message) ON DELETE CASCADE
);
CREATE TABLE draft_pieces (
    chat TEXT NOT NULL REFERENCES drafts (chat) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    text TEXT NOT NULL,
    ids BLOB NOT NULL,
    PRIMARY KEY (chat, place)
) WITHOUT ROWID;
CREATE TABLE documents (
    sha TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    path TEXT NOT NULL,
    created_at_s REAL NOT NULL
);
CREATE TABLE document_pages (
    document TEXT NOT NULL REFERENCES documents (sha) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    label TEXT,
    verdict TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (document, number)
);
CREATE TABLE chat_documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    document TEXT NOT NULL,         -- may still be in reading: no row of `documents` yet
    name TEXT NOT NULL,
    leading INTEGER NOT NULL,
    UNIQUE (chat, document)
);
CREATE TABLE saved_settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL             -- JSON
)
"""


def _whole_ledger(connection: sqlite3.Connection) -> None:
    for column in (
        "documents TEXT NOT NULL DEFAULT '[]'",  # JSON
        "stored_before TEXT",  # JSON
        "stored_after TEXT",  # JSON
        "lost_tokens INTEGER NOT NULL DEFAULT 0",
        "undo TEXT",
        "question TEXT",  # the user message that was being answered
    ):
        connection.execute(f"ALTER TABLE ledger ADD COLUMN {column}")


def _document_pins(connection: sqlite3.Connection) -> None:
    connection.execute("""CREATE TABLE document_pins (
    chat TEXT NOT NULL,
    document TEXT NOT NULL,
    page INTEGER,                   -- NULL: all of it
    FOREIGN KEY (chat, document) REFERENCES chat_documents (chat, document) ON DELETE CASCADE
)""")
    connection.execute(
        "CREATE UNIQUE INDEX document_pin_pages ON document_pins (chat, document, ifnull(page, 0))"
    )
    connection.execute(
        "DELETE FROM pins WHERE rowid NOT IN (SELECT min(rowid) FROM pins GROUP BY chat, message)"
    )


def _summaries(connection: sqlite3.Connection) -> None:
    connection.execute("""CREATE TABLE summaries (
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    name TEXT NOT NULL,             -- hash of the names of the messages that it covers
    num_messages INTEGER NOT NULL,
    text TEXT NOT NULL,
    created_at_s REAL NOT NULL,
    PRIMARY KEY (chat, name)
)""")


def _entries_that_grow(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE ledger ADD COLUMN changed INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE ledger SET changed = number")
    connection.execute("CREATE INDEX ledger_changes ON ledger (chat, changed)")


def _replies_that_go_on(connection: sqlite3.Connection) -> None:
    """The reply that a draft goes on from, and whose place it takes."""
    connection.execute("ALTER TABLE drafts ADD COLUMN goes_on TEXT")


def _document_choices(connection: sqlite3.Connection) -> None:
    connection.execute("""CREATE TABLE document_choices (
    chat TEXT NOT NULL,
    document TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('whole', 'passages', 'off')),
    PRIMARY KEY (chat, document),
    FOREIGN KEY (chat, document) REFERENCES chat_documents (chat, document) ON DELETE CASCADE
)""")
    connection.execute("""CREATE TABLE left_pages (
    chat TEXT NOT NULL,
    document TEXT NOT NULL,
    page INTEGER NOT NULL,
    PRIMARY KEY (chat, document, page),
    FOREIGN KEY (chat, document) REFERENCES chat_documents (chat, document) ON DELETE CASCADE
)""")


def _read_documents(connection: sqlite3.Connection) -> None:
    """What a file is, which version of the reader read it, and where recognised words stand."""
    for column in (
        "kind TEXT NOT NULL DEFAULT 'pdf'",
        "extractor INTEGER NOT NULL DEFAULT 1",
        "attachments TEXT NOT NULL DEFAULT '[]'",  # JSON
        "is_divided INTEGER NOT NULL DEFAULT 0",
    ):
        connection.execute(f"ALTER TABLE documents ADD COLUMN {column}")
    connection.execute("ALTER TABLE document_pages ADD COLUMN facts TEXT NOT NULL DEFAULT '{}'")
    connection.execute("""CREATE TABLE page_words (
    document TEXT NOT NULL,
    number INTEGER NOT NULL,
    words TEXT NOT NULL,            -- JSON: [text, left, top, right, bottom]...
    PRIMARY KEY (document, number),
    FOREIGN KEY (document, number) REFERENCES document_pages (document, number) ON DELETE CASCADE
)""")


def _drafts_that_cite(connection: sqlite3.Connection) -> None:
    """What the model was given for a reply, before a word of it came."""
    connection.execute("ALTER TABLE drafts ADD COLUMN citations TEXT NOT NULL DEFAULT '[]'")  # JSON


MIGRATIONS = (
    _first_tables,
    _whole_ledger,
    _document_pins,
    _summaries,
    _entries_that_grow,
    _replies_that_go_on,
    _document_choices,
    _read_documents,
    _drafts_that_cite,
)


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the tables are those of this version."""
    return _version(connection) == len(MIGRATIONS)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the tables up to date, each step with its number in one transaction.

    Raises StoreError `folder_too_new` for tables of a later version, and leaves them alone.
    """
    found = _version(connection)
    known = len(MIGRATIONS)
    if found > known:
        file = connection.execute("PRAGMA database_list").fetchone()[2]
        raise StoreError("folder_too_new", folder=file, found=found, known=known)
    for number in range(found, known):
        connection.execute("BEGIN IMMEDIATE")
        MIGRATIONS[number](connection)
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
