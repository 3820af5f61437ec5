"""The kvchat that already runs on a data folder: a note there says where, `/health` says whether.

Knows nothing of how a server is started. The note is its owner's alone, for it may hold a token.
"""

import json
import os
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvchat.store.folder import owner_only

_NOTE = "running.json"
_ANSWER_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Running:
    """`url` is what people are told; `entrance` also lets a browser in where a token is needed."""

    url: str
    entrance: str
    token: str | None
    pid: int


def note(data_dir: Path, running: Running) -> None:
    """Leaves word of this server. The old note is replaced as a whole."""
    new = data_dir / f"{_NOTE}.new"
    with open(owner_only(new), "w", encoding="utf-8") as file:
        file.truncate()
        json.dump(asdict(running), file)
    os.replace(new, data_dir / _NOTE)


def forget(data_dir: Path) -> None:
    """Takes back the note, if it is of this program."""
    found = _read(data_dir)
    if found is not None and found.pid == os.getpid():
        with suppress(OSError):
            (data_dir / _NOTE).unlink()


def running_on(data_dir: Path) -> Running | None:
    """The server that answers for this data folder. A note may have outlived its server."""
    found = _read(data_dir)
    return found if found is not None and _alive(found) else None


def _read(data_dir: Path) -> Running | None:
    try:
        return Running(**json.loads((data_dir / _NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def memory_of(running: Running) -> dict[str, Any]:
    """The frame of a server that runs: what its memory is and how much it may use. Empty where it
    does not tell.
    """
    found = _asked(running, "/api/memory")
    return found if isinstance(found, dict) else {}


def _alive(running: Running) -> bool:
    import psutil

    if not psutil.pid_exists(running.pid):
        return False
    found = _asked(running, "/health")
    return isinstance(found, dict) and "model" in found


def _asked(running: Running, path: str) -> object:
    """None where nobody answers, or something else does."""
    request = urllib.request.Request(f"{running.url}{path}")
    if running.token:
        request.add_header("Authorization", f"Bearer {running.token}")
    # No proxy stands between this machine and itself.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_ANSWER_TIMEOUT_S) as answer:
            found: object = json.load(answer)
    except (OSError, ValueError):
        return None
    return found
