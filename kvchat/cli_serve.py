"""`kvchat serve`: one server on one data folder, with the screen, `/v1` and the live frames.

Takes the port, lets the conversations load their model in the background, and says where the page
is as soon as it answers. Knows no route, no widget and no model.
"""

import logging
import os
import secrets
import signal
import sys
import threading
import time
import webbrowser
from argparse import Namespace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import uvicorn

from kvchat.cli_listen import (
    DEFAULT_PORT,
    check_port,
    is_loopback,
    listening,
    names_of,
    url_from_outside,
    url_of,
)
from kvchat.cli_running import Running, forget, note, running_on
from kvchat.errors import KVChatError, StoreError
from kvchat.settings import Settings
from kvchat.store.folder import owner_only
from kvchat.wording import Language, say

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kvchat.chat.conversations import Conversations

# How long a second start waits for the first one on the same folder, which may still be importing.
_FIRST_START_S = 60.0
_LOG_BYTES = 2 * 1024**2


def run(arguments: Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Serves until Ctrl+C. Raises ServeError, StoreError, ModelError (if the model cannot load)."""
    check_port(arguments.port)
    signal.signal(signal.SIGTERM, _terminate)
    # A shell's background job is started with SIGINT ignored; who sends it all the same means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = running_on(data_dir)
    if found is not None:
        return _open_running(found, arguments, lang)
    with listening(arguments.host, arguments.port) as listener:
        os.environ["GRADIO_TEMP_DIR"] = str(data_dir / "uploads")
        try:
            conversations = _conversations(settings, data_dir, arguments)
        except StoreError as error:
            found = _wait_for_first(data_dir) if error.code == "locked" else None
            if found is None:
                raise
            return _open_running(found, arguments, lang)
        try:
            _serve(conversations, listener, arguments, data_dir, lang)
        finally:
            forget(data_dir)
            conversations.close()
    return 0


def _conversations(settings: Settings, data_dir: Path, arguments: Namespace) -> "Conversations":
    from kvchat.chat.conversations import Conversations

    return Conversations(settings, data_dir, arguments.sources)


def _open_running(found: Running, arguments: Namespace, lang: Language) -> int:
    print(say("cli.already", lang, url=found.url), flush=True)
    port = urlsplit(found.url).port
    if arguments.port and port is not None and arguments.port != port:
        _warn(say("cli.port_other", lang, asked=arguments.port, port=port))
    if not arguments.no_browser:
        _open_browser(found.entrance)
    return 0


def _wait_for_first(data_dir: Path) -> Running | None:
    until = time.monotonic() + _FIRST_START_S
    while time.monotonic() < until:
        found = running_on(data_dir)
        if found is not None:
            return found
        time.sleep(0.5)
    return None


class _Server(uvicorn.Server):
    """Says when it answers, and stops by itself when the model cannot be loaded."""

    def __init__(self, app: "FastAPI", conversations: "Conversations") -> None:
        config = uvicorn.Config(
            app, access_log=False, log_config=None, ws="none", timeout_graceful_shutdown=2
        )
        super().__init__(config)
        self._app = app
        self.failure: KVChatError | None = None
        self._conversations = conversations
        self.when_ready = threading.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_ready.set()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._app.state.ending.set()
        await super().shutdown(sockets)

    def watch_model(self) -> None:
        try:
            self._conversations.wait_ready()
        except KVChatError as error:
            if error.code in ("load_cancelled", "model_unloaded"):
                return  # somebody at the screen wanted it so
            self.failure = error
            self.should_exit = True


def _serve(
    conversations: "Conversations",
    listener: socket,
    arguments: Namespace,
    data_dir: Path,
    lang: Language,
) -> None:
    _log_to(data_dir)
    host, port = arguments.host, listener.getsockname()[1]
    token = (
        None if is_loopback(host) else os.environ.get("KVCHAT_TOKEN") or secrets.token_urlsafe(24)
    )
    url = url_of(host, port)
    running = Running(url, f"{url}/?t={token}" if token else url, token, os.getpid())
    server = _Server(_app(conversations, arguments, token), conversations)

    def announce() -> None:
        server.when_ready.wait()
        note(data_dir, running)
        if token:
            outside = f"{url_from_outside(host, port)}/?t={token}"
            _warn(say("cli.open_to_network", lang, host=host, url=outside))
        if arguments.port is None and port != DEFAULT_PORT:
            _warn(say("cli.port_moved", lang, asked=DEFAULT_PORT, port=port))
        print(say("cli.ready", lang, url=url), flush=True)
        if not arguments.no_browser:
            _open_browser(running.entrance)
        server.watch_model()

    threading.Thread(target=announce, name="announce", daemon=True).start()
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure


def _app(conversations: "Conversations", arguments: Namespace, token: str | None) -> "FastAPI":
    from kvchat.api.app import build_app
    from kvchat.ui.mount import mount_ui

    return build_app(
        conversations,
        token=token,
        allowed_hosts=names_of(arguments.host),
        language=arguments.lang,
        mount=lambda app: mount_ui(app, conversations),
    )


def _warn(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _log_to(data_dir: Path) -> None:
    """One rotating file in the data folder; nothing on the terminal but what is said on purpose."""
    file = data_dir / "kvchat.log"
    os.close(owner_only(file))
    handler = RotatingFileHandler(file, maxBytes=_LOG_BYTES, backupCount=3, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _open_browser(url: str) -> None:
    """In the desktop's browser. Without a desktop a text browser would take over the terminal."""
    desktop = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if desktop or sys.platform in ("win32", "darwin"):
        webbrowser.open(url)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM ends as Ctrl+C does: what is open is closed first. 143 = 128 + SIGTERM."""
    raise SystemExit(143)
