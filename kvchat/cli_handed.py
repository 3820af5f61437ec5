"""A question of `ask` handed to the kvchat that already runs on the data folder, files and all.

The running one keeps its own model and settings; what only a start of its own could do is refused
in a sentence that says where its page is. Knows no model and no chat.
"""

import json
import secrets
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from kvchat.cli_running import Running
from kvchat.errors import RequestError
from kvchat.settings import Settings
from kvchat.units import MIB
from kvchat.wording import Language

Event = dict[str, Any]

# What belongs to the running program: its model, its settings.
_ITS_OWN = ("model", "memory_budget", "dtype", "weights", "threads", "set", "preset", "settings")
_OF_A_REPLY = ("max_new_tokens", "temperature", "seed")
_ENDS = ("done", "failed", "refused")
# The stream is never silent for long; before it begins the files are sent.
_SILENCE_S = 120.0


def refuse_its_own(running: Running, args: Namespace) -> None:
    """Raises RequestError for flags that would need a start of their own."""
    asked = [name for name in _ITS_OWN if getattr(args, name, None)]
    if asked:
        flags = ", ".join("--" + name.replace("_", "-") for name in asked)
        raise RequestError("ask_needs_own_start", flags=flags, url=running.url)


def handed(
    running: Running,
    args: Namespace,
    settings: Settings,
    lang: Language,
    passwords: Sequence[str] = (),
) -> Iterator[Event]:
    """The events of the answer as `AskedOnce` tells them, the last one `done`, `failed` or
    `refused`. Raises RequestError where the running one broke off.
    """
    form = _Form(_fields(args, settings, passwords), args.pdf)
    request = urllib.request.Request(
        f"{running.url}/api/ask",
        form.body(),
        {
            "Content-Type": f"multipart/form-data; boundary={form.boundary}",
            "Content-Length": str(form.num_bytes),
            "Accept-Language": lang,
        },
    )
    if running.token:
        request.add_header("Authorization", f"Bearer {running.token}")
    # No proxy stands between this machine and itself.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SILENCE_S) as answer:
            yield from _events(answer)
    except urllib.error.HTTPError as refusal:
        yield _told(refusal, running)
    except (OSError, HTTPException):
        raise RequestError("ask_broken_off", url=running.url) from None


def _told(refusal: urllib.error.HTTPError, running: Running) -> Event:
    """A refusal in the form of `/v1`: sentence and remedy in one."""
    try:
        error = json.loads(refusal.read())["error"]
        told = {"code": error["code"], "message": error["message"], "remedy": ""}
    except (OSError, ValueError, KeyError):
        raise RequestError("ask_broken_off", url=running.url) from None
    return {"type": "failed", **told}


def _events(answer: IO[bytes]) -> Iterator[Event]:
    for line in answer:
        told = line.decode("utf-8").strip().removeprefix("data: ")
        if told.startswith("{"):
            event: Event = json.loads(told)
            yield event
            if event["type"] in _ENDS:
                return
    raise ConnectionError("the answer broke off")


def _fields(
    args: Namespace, settings: Settings, passwords: Sequence[str]
) -> Iterator[tuple[str, str]]:
    yield "question", args.question
    if args.chat:
        yield "chat", args.chat
    yield from (("pdf_password", one) for one in passwords)
    for name in _OF_A_REPLY:
        if getattr(args, name) is not None:
            yield name, str(getattr(settings, name))


class _Form:
    """multipart/form-data (RFC 7578), the files read while they are sent."""

    def __init__(self, fields: Iterator[tuple[str, str]], files: Sequence[Path]) -> None:
        self.boundary = secrets.token_hex(16)
        self._parts: list[bytes | Path] = []
        for name, text in fields:
            self._parts += [self._head(f'name="{name}"'), text.encode()]
        for path in files:
            called = path.name.translate({0x22: '\\"', 0x5C: "\\\\", 0x0D: " ", 0x0A: " "})
            self._parts += [self._head(f'name="pdf"; filename="{called}"'), path]
        self._parts.append(f"\r\n--{self.boundary}--\r\n".encode())
        self.num_bytes = sum(
            len(one) if isinstance(one, bytes) else one.stat().st_size for one in self._parts
        )

    def _head(self, about: str) -> bytes:
        return f"\r\n--{self.boundary}\r\nContent-Disposition: form-data; {about}\r\n\r\n".encode()

    def body(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
                continue
            with part.open("rb") as file:
                while piece := file.read(MIB):
                    yield piece
