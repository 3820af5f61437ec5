"""A file written whole or not at all: the one way in which small files of the data folder change;
how those are read that keep figures by key, and JSON of others.

A killed program leaves the old file or the new one, and perhaps a part beside it. Knows no file.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PART = ".part"
LARGEST_JSON = 64 * 1024**2  # the index of the largest models has a few


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a part beside the file, to the disk itself, and gives it the file's name. Its owner
    alone may read it. Raises OSError, and leaves what was.
    """
    written = content.encode("utf-8") if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=PART, dir=path.parent)
    part = Path(name)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(written)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_json(file: Path) -> dict[str, Any]:
    """An object of JSON that somebody else wrote. Raises OSError, and ValueError for anything else:
    weights may have been named, which are larger than the memory.
    """
    if file.exists() and not file.is_file():
        raise ValueError("no file")
    with file.open("rb") as opened:
        content = opened.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise ValueError("too large")
    try:
        found = json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def read_keys(path: Path, version: int) -> Mapping[str, Any]:
    """What such a JSON file has by key; nothing where it is missing, damaged or of another
    version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        keys = found["keys"] if found["version"] == version else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}
