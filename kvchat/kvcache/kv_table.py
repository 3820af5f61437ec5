"""What a model's KV files hold, by the names of blocks: read from their headers, kept in memory.

Thread-safe. Knows no tensor and no pool.
"""

import threading
from collections.abc import Iterable

from kvchat.kvcache.kv_file import Header, Stored
from kvchat.memory.formats import FormatPair, lower_of


class KVTable:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Header] = {}
        self._by_key: dict[bytes, list[tuple[str, Stored]]] = {}
        self._tails: dict[bytes, list[str]] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, header: Header) -> None:
        name = header.name
        with self._lock:
            if name in self._files:
                return
            self._files[name] = header
            if header.tail_tokens:
                self._tails.setdefault(header.parent, []).append(name)
                return
            for one in header.copies:
                self._by_key.setdefault(header.keys[one.place], []).append((name, one))

    def remove(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                header = self._files.pop(name, None)
                if header is not None:
                    self._forget(name, header)

    def _forget(self, name: str, header: Header) -> None:
        if header.tail_tokens:
            tails = self._tails[header.parent]
            tails.remove(name)
            if not tails:
                del self._tails[header.parent]
            return
        for key in header.keys:
            self._by_key[key] = [one for one in self._by_key.get(key, ()) if one[0] != name]
            if not self._by_key[key]:
                del self._by_key[key]

    def find(self, key: bytes, group: int, floor: FormatPair) -> tuple[str, Stored] | None:
        """The best copy of that name, stored in `floor` or better and computed over no less: its
        file, and its place there.
        """
        best: tuple[str, Stored] | None = None
        with self._lock:
            for name, one in self._by_key.get(key, ()):
                serves = one.group == group and lower_of(one.pair, one.over).at_least(floor)
                if serves and (best is None or one.pair.at_least(best[1].pair)):
                    best = name, one
        return best

    def files_of(self, keys: Iterable[bytes]) -> list[str]:
        """The files that hold these names, in their order."""
        with self._lock:
            found = (name for key in keys for name, _ in self._by_key.get(key, ()))
            return list(dict.fromkeys(found))

    def tails_after(self, parent: bytes) -> list[tuple[str, Header]]:
        with self._lock:
            return [(name, self._files[name]) for name in self._tails.get(parent, ())]
