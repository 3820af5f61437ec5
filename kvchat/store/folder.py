"""The data folder as a whole: one program at a time, a known format, its owner's eyes only.

The lock is the operating system's, on an open file: it ends with the program that holds it, however
that ended, so there is no stale lock to clean up. Knows nothing of what lies in the folder.
"""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from kvchat.errors import StoreError
from kvchat.files import replace_file

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FORMAT = 1


class HeldFolder:
    """The folder, made if need be and held until `close`.

    Raises StoreError: `locked` while another program holds it, `folder_too_new`, `folder_unusable`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = owner_only(path / "kvchat.lock")
        except OSError as error:
            raise unusable(path, error) from None
        try:
            _take(self._lock, path)
            _check_format(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closing the file gives the lock back."""
        with suppress(OSError):
            os.close(self._lock)


def owner_only(file: Path) -> int:
    """A descriptor of the file, made if need be, which only its owner may read and write (0600)."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    with suppress(OSError):  # a file system without rights, or a file of someone else's
        os.chmod(file, 0o600)
    return descriptor


def unusable(path: Path, error: OSError) -> StoreError:
    """What to say of a folder in which a file could not be made."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return StoreError("store_full", folder=path)
    return StoreError("folder_unusable", folder=path, why=error.strerror or type(error).__name__)


def _take(descriptor: int, path: Path) -> None:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX, Windows
        raise StoreError("locked", folder=path) from None
    except OSError as error:
        raise unusable(path, error) from None


def _check_format(path: Path) -> None:
    file = path / "format"
    try:
        found = int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        _write_format(file)
        return
    except OSError as error:
        raise unusable(path, error) from None
    except ValueError:
        raise StoreError("store_damaged", file=file) from None
    if found > FORMAT:
        raise StoreError("folder_too_new", folder=path, found=found, known=FORMAT)


def _write_format(file: Path) -> None:
    try:
        replace_file(file, f"{FORMAT}\n")
    except OSError as error:
        raise unusable(file.parent, error) from None
