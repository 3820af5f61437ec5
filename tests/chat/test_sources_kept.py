"""The sources of an answer are there whenever its first word is, and so after the program's end."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from kvchat.chat.conversations import Conversations
from kvchat.store.database import FILE_NAME
from kvchat.store.store import Store
from tests.chat.test_conversations import ended
from tests.documents.small_pdf import write_pdf

Start = Callable[..., Conversations]


def test_a_program_that_ends_in_mid_answer_leaves_the_sources(start: Start, tmp_path: Path) -> None:
    """What lies on disk once words came is opened as the next start opens it."""
    talks = start(max_new_tokens=40)
    chat = talks.new_chat()
    file = write_pdf(tmp_path / "pump.pdf", [[(50, 700, "The pump runs at night.")]])
    talks.add_document(chat, file, file.name)
    live = talks.ask(chat, "When does the pump run?")
    next(event for event in live.events() if event["type"] == "token" and event["text"].strip())
    folder = tmp_path / "left behind"
    folder.mkdir()
    with talks._store._database.read() as connection:
        target = sqlite3.connect(folder / FILE_NAME)
        connection.backup(target)
        target.close()
    ended(live)
    with Store(folder) as store:
        made = store.generation(store.messages(chat)[-1].hash)
        assert made is not None
        assert made.stop_reason == "interrupted"
        assert [(one["name"], one["page"]) for one in made.citations] == [("pump.pdf", 1)]
