"""The screen over real conversations with a tiny model of random weights: nothing stands in but the
weights, so that the store, the search, files and branches are the program's own.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from kvchat.chat.conversations import Conversations
from kvchat.models.verdicts import keep_verdicts
from tests.starts import resolve
from tests.tiny import key_of, passed_verdicts, tiny_folder
from tests.ui.serve_standin import app_over


class Tiny:
    """A server on a free port, or on `port` again after `end`."""

    def __init__(self, folder: Path, **flags: object) -> None:
        self.folder, self.flags, self.port = folder, flags, 0
        self.model = folder / "model"
        if not self.model.is_dir():
            tiny_folder("llama", self.model)
            keep_verdicts(folder / "data", key_of(self.model), passed_verdicts())
        self.begin()

    def begin(self) -> None:
        usual = {"model": str(self.model), "temperature": 0, "max_new_tokens": 12, "headroom": 0}
        self.talks = Conversations(resolve(flags=usual | self.flags), self.folder / "data")
        self.talks.wait_ready(120)
        app = app_over(self.talks)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=2
        )
        self._ending = app.state.ending
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.02)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        self._ending.set()
        self._server.should_exit = True
        self._thread.join(10)
        self.talks.close()

    def said(self, *texts: str, title: str = "", chat: str = "") -> str:
        """A chat with these texts by turns, question first."""
        store: Any = self.talks._store
        chat = chat or store.new_chat(title, "").id
        for text, role in zip(texts, roles(texts), strict=True):
            store.append(chat, role, text)
        return chat


def roles(texts: Sequence[str]) -> list[Any]:
    return ["assistant" if number % 2 else "user" for number in range(len(texts))]
