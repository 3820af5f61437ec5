"""A file written whole or not at all: the one way in which small files of the data folder change.

A killed program leaves the old file or the new one, and perhaps a part beside it. Knows no file.
"""

import os
import tempfile
from pathlib import Path

PART = ".part"


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
