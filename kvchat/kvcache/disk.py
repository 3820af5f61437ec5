"""The folder that KV files lie in: who may read them, which chat needs which, and the quota.

    kv/chats.json              which files each chat wrote or read
    kv/<model>/<name>          one file, whole: written as `<name>.part`, then renamed

Killed at any moment it holds whole files and parts, and parts go at the next start. A file that no
chat is noted for goes as well: nobody could delete it. Knows neither what is in a file nor torch.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from kvchat.files import PART, replace_file

SUFFIX = ".safetensors"
KV_FOLDER = "kv"  # in the data folder
CHATS = "chats.json"

# One program holds the data folder; its threads take turns here.
_lock = threading.RLock()


class KVFolder:
    """Files by `<model>/<name>`. Thread-safe. What the disk refuses raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forgotten: set[str] = set()
        self._editions: dict[str, int] = {}

    def open(self, model: str) -> list[str]:
        """Makes the folders and removes what a killed program left; returns the model's files."""
        with _lock:
            for folder in (self.path, self.path / model):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(OSError):  # a file system without rights
                    folder.chmod(0o700)
            for part in (*self.path.glob(f"*{PART}"), *self.path.glob(f"*/*{PART}")):
                _unlink(part)
            noted = {file for files in self._chats().values() for file in files}
            found = self._files()
            self.remove(file for file in found if file not in noted)
            return sorted(f for f in found if f in noted and f.startswith(f"{model}/"))

    def num_bytes(self) -> int:
        """Of all files, those of other models too."""
        return sum(_size(self.path / file) for file in self._files())

    def chat_bytes(self, model: str = "") -> dict[str, int]:
        """Of each chat the files that it needs, those of one model where one is given; a file that
        several need counts for each.
        """
        with _lock:
            chats = self._chats()
        wanted = {file for files in chats.values() for file in files if file.startswith(model)}
        sizes = {file: _size(self.path / file) for file in wanted}
        return {chat: sum(sizes.get(file, 0) for file in files) for chat, files in chats.items()}

    def edition(self, chat: str) -> int:
        """How often the chat was forgotten and went on."""
        with _lock:
            return self._editions.get(chat, 0)

    def write(self, file: str, of: tuple[str, int], fill: Callable[[Path], None]) -> bool:
        """`fill` writes the part; it gets its name when all of it is on the disk and the chat is
        noted for it. `of`: a chat and its edition. False where that was forgotten meanwhile: then
        there is no file.
        """
        chat, edition = of
        part = self.path / f"{file}{PART}"
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            fill(part)
            with suppress(OSError):
                part.chmod(0o600)
            _sync(part)
            with _lock:
                if chat in self._forgotten or edition != self.edition(chat):
                    _unlink(part)
                    return False
                self.note(chat, [file])
                part.replace(self.path / file)
                _sync(part.parent)
            return True
        except BaseException:
            _unlink(part)
            raise

    def note(self, chat: str, files: Iterable[str]) -> None:
        """The chat needs these files from now on."""
        with _lock:
            chats = self._chats()
            known = chats.get(chat, [])
            more = [file for file in files if file not in known]
            if more and chat not in self._forgotten:
                self._keep(chats | {chat: known + more})

    def use(self, files: Iterable[str]) -> None:
        """A text was read or written along these files, in this order: its end is given up before
        its beginning, without which it is of no use.
        """
        now = time.time_ns()
        for i, file in enumerate(files):
            with suppress(OSError):
                os.utime(self.path / file, ns=(now - i * 1000, now - i * 1000))

    def remove(self, files: Iterable[str]) -> None:
        with _lock:
            gone = set(files)
            for file in gone:
                _unlink(self.path / file)
            chats = self._chats()
            left = {c: [f for f in files if f not in gone] for c, files in chats.items()}
            left = {chat: files for chat, files in left.items() if files}
            if left != chats:
                with suppress(OSError):  # a full disk: names of files that are gone do no harm
                    self._keep(left)

    def shrink(self, quota_bytes: int) -> list[str]:
        """Removes the least recently used files until the rest is within the quota; returns
        them.
        """
        with _lock:
            by_use = sorted(self._files(), key=lambda file: _used_ns(self.path / file))
            left, gone = self.num_bytes(), []
            for file in by_use:
                if left <= quota_bytes:
                    break
                left -= _size(self.path / file)
                gone.append(file)
            if gone:
                self.remove(gone)
            return gone

    def forget(self, chat: str, *, goes_on: bool = False) -> list[str]:
        """Removes the files that only this chat needs; returns them. Nothing more is written for
        it, or where it `goes_on` nothing that began before.
        """
        with _lock:
            if goes_on:
                self._editions[chat] = self.edition(chat) + 1
            else:
                self._forgotten.add(chat)
            chats = self._chats()
            own = chats.pop(chat, [])
            needed = {file for files in chats.values() for file in files}
            gone = [file for file in own if file not in needed]
            for file in gone:
                _unlink(self.path / file)
            if own:
                with suppress(OSError):
                    self._keep(chats)
            return gone

    def _files(self) -> list[str]:
        found = self.path.glob(f"*/*{SUFFIX}")
        return [f"{file.parent.name}/{file.name}" for file in found]

    def _chats(self) -> dict[str, list[str]]:
        try:
            found = json.loads((self.path / CHATS).read_text(encoding="utf-8"))
            return {str(chat): [str(file) for file in files] for chat, files in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _keep(self, chats: dict[str, list[str]]) -> None:
        replace_file(self.path / CHATS, json.dumps(chats))


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _used_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _sync(path: Path) -> None:
    """To the disk itself; folders where the system lets them be opened."""
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
