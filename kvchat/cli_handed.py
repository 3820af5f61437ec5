"""A question of `ask` handed to the kvchat that already runs on the data folder, over its `/v1`.

The running one keeps its own model and settings; what only a start of its own could do is refused
in a sentence that says where its page is. Knows no model and no chat.
"""

import json
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from http.client import HTTPException
from typing import IO, Any

from kvchat.cli_running import Running
from kvchat.errors import RequestError
from kvchat.settings import Settings
from kvchat.wording import Language

Event = dict[str, Any]

# What belongs to the running program: its chats, its documents, its model, its settings.
_ITS_OWN = (
    *("pdf", "chat", "model", "memory_budget", "dtype", "weights", "threads"),
    *("set", "preset", "settings"),
)
# An answer may wait for a model that loads, and for others' answers.
_SILENCE_S = 600.0


def refuse_its_own(running: Running, args: Namespace) -> None:
    """Raises RequestError for flags that would need a start of their own."""
    asked = [name for name in _ITS_OWN if getattr(args, name, None)]
    if asked:
        flags = ", ".join("--" + name.replace("_", "-") for name in asked)
        raise RequestError("ask_needs_own_start", flags=flags, url=running.url)


def handed(
    running: Running, args: Namespace, settings: Settings, lang: Language
) -> Iterator[Event]:
    """The events of the answer, the last one `done` or `failed`, as `ask --json` prints them."""
    request = urllib.request.Request(
        f"{running.url}/v1/chat/completions",
        json.dumps(_body(args, settings)).encode(),
        {"Content-Type": "application/json", "Accept-Language": lang},
    )
    if running.token:
        request.add_header("Authorization", f"Bearer {running.token}")
    # No proxy stands between this machine and itself.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SILENCE_S) as answer:
            yield from _events(answer)
    except urllib.error.HTTPError as refusal:
        yield _failed(_told(refusal, running))
    except (OSError, HTTPException):
        raise RequestError("ask_broken_off", url=running.url) from None


def _told(refusal: urllib.error.HTTPError, running: Running) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(refusal.read())["error"]
    except (OSError, ValueError, KeyError):
        raise RequestError("ask_broken_off", url=running.url) from None
    return told


def _body(args: Namespace, settings: Settings) -> dict[str, Any]:
    """The question alone, with what the command line says of the reply."""
    system = [{"role": "system", "content": settings.system_text}] if settings.system_text else []
    body: dict[str, Any] = {
        "messages": [*system, {"role": "user", "content": args.question}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    said = {
        "max_tokens": (args.max_new_tokens, settings.max_new_tokens),
        "temperature": (args.temperature, settings.temperature),
        "seed": (args.seed, settings.seed),
    }
    return body | {name: value for name, (flag, value) in said.items() if flag is not None}


def _events(answer: IO[bytes]) -> Iterator[Event]:
    text, finish, figures, first_s = "", None, None, 0.0
    for line in answer:
        told = line.decode("utf-8").strip().removeprefix("data: ")
        if not told.startswith("{"):
            continue
        piece = json.loads(told)
        if "error" in piece:
            yield _failed(piece["error"])
            return
        yield from ({"type": "took"} | one for one in piece.get("kvchat", {}).get("ledger", ()))
        for choice in piece["choices"]:
            finish = choice["finish_reason"] or finish
            written = choice["delta"].get("content")
            if written:
                first_s = first_s or time.monotonic()
                text += written
                yield {"type": "token", "text": written}
        if piece.get("usage"):
            figures = _figures(piece["usage"], time.monotonic() - first_s)
    if finish is None:
        raise ConnectionError("the answer broke off")
    yield {"type": "done", "text": text, "finish_reason": finish, "figures": figures}


def _figures(usage: dict[str, Any], elapsed_s: float) -> dict[str, Any]:
    """The speed is measured here, from the first token to the last."""
    reply = usage["completion_tokens"]
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "reused_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "reply_tokens": reply,
        "decode_tokens_per_s": (reply - 1) / elapsed_s if reply > 1 and elapsed_s > 0 else None,
    }


def _failed(error: dict[str, Any]) -> Event:
    """`/v1` tells sentence and remedy in one."""
    return {"type": "failed", "code": error["code"], "message": error["message"], "remedy": ""}
