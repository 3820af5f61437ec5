"""A folder's list of its files with their SHA-256, written last: without it a folder is not whole.

Hashing 260 MiB at each start would cost as much as loading them; so a file whose size and time are
as they were when it was hashed is taken for unchanged, and any other is hashed again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvchat.files import replace_file

_NAME = "manifest.json"
_VERSION = 1  # of what the conversion writes: another one makes the folder again


def sha256(file: Path, told: Callable[[int], None] | None = None) -> str:
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(4 * 2**20):
            found.update(piece)
            if told is not None:
                told(len(piece))
    return found.hexdigest()


def write_manifest(folder: Path, source_sha256: str) -> None:
    """Hashes what was written, and puts it on the disk for good: a crash leaves no torn folder."""
    files = {file.name: _about(file) for file in sorted(folder.iterdir())}
    made = {"version": _VERSION, "source_sha256": source_sha256, "files": files}
    for file in folder.iterdir():
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())
    replace_file(folder / _NAME, json.dumps(made, indent=1))


def _about(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"bytes": stat.st_size, "modified_ns": stat.st_mtime_ns, "sha256": sha256(file)}


def is_whole(folder: Path, source_sha256: str) -> bool:
    """Whether the folder holds what its manifest says, made from that source."""
    try:
        made = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        if (made["version"], made["source_sha256"]) != (_VERSION, source_sha256):
            return False
        return all(_is_same(folder / name, about) for name, about in made["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_same(file: Path, about: dict[str, Any]) -> bool:
    stat = file.stat()
    if stat.st_size != about["bytes"]:
        return False
    return bool(stat.st_mtime_ns == about["modified_ns"] or sha256(file) == about["sha256"])
