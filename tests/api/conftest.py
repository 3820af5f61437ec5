"""A real server on a free port of 127.0.0.1, with a stand-in for the conversations behind it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from openai import OpenAI

from kvchat.api.app import build_app
from tests.api.standin import StandIn


@dataclass
class Served:
    port: int
    conversations: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, **options: Any) -> OpenAI:
        settings = {"api_key": "none", "max_retries": 0, "timeout": 30} | options
        return OpenAI(base_url=f"{self.url}/v1", **settings)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(token_s=0.01, app={"token": "x"})`: options of StandIn, in `app` of `build_app`; or
    other conversations.
    """
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def begin(
        *, app: dict[str, Any] | None = None, conversations: Any = None, **standin: Any
    ) -> Served:
        conversations = conversations or StandIn(**standin)
        config = uvicorn.Config(
            build_app(conversations, **(app or {})),
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until_s = time.monotonic() + 10
        while not server.started and time.monotonic() < until_s:
            time.sleep(0.01)
        assert server.started
        running.append((server, thread))
        return Served(listening.getsockname()[1], conversations)

    yield begin
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture
def conversations() -> StandIn:
    return StandIn()


@pytest.fixture
def client(conversations: StandIn) -> Callable[..., httpx.AsyncClient]:
    """Asks the app without a network. Options are `build_app`'s."""

    def make(**options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(
            build_app(conversations, **options), raise_app_exceptions=False
        )
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    return make
