"""Which blocks each chat would find again: names only, of the chats that were open last.

Holds no block. What was dropped meanwhile is forgotten when it is counted.
"""

from kvchat.kvcache.pool import Pool

MOST_CHATS = 200  # each is told of in every frame


class ChatBlocks:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keys: dict[str, tuple[bytes, ...]] = {}

    def remember(self, chat: str, keys: tuple[bytes, ...]) -> None:
        """The chat's text was closed: these are the names of its sealed blocks."""
        self._keys.pop(chat, None)
        self._keys[chat] = keys
        if len(self._keys) > MOST_CHATS:
            del self._keys[next(iter(self._keys))]

    def num_bytes(self) -> dict[str, int]:
        """Bytes by chat; a block that two share counts for each. Chats without any are left out."""
        sizes = {key: self._pool.bytes_of(key) for keys in self._keys.values() for key in keys}
        there = {
            chat: tuple(key for key in keys if sizes[key]) for chat, keys in self._keys.items()
        }
        self._keys = {chat: keys for chat, keys in there.items() if keys}
        return {chat: sum(sizes[key] for key in keys) for chat, keys in self._keys.items()}
