"""Documents cut into passages, and the passages indexed: made once, kept, made anew for other text.

For millions of letters that takes seconds, so it may begin before there is a question. Knows no
store and no reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache

from kvchat.chat.counting import Pages, TokenCounts
from kvchat.documents.pages import ReadDocument
from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import Index

LONG_TOKENS = 100_000
"""What is shorter is indexed in a moment."""

Documents = tuple[tuple[str, Pages], ...]
"""By hash, each with the pages that are left out."""


class Indexes:
    """`document` gives a document as it was read. Calls may come from any thread."""

    def __init__(self, tokens: TokenCounts, document: Callable[[str], ReadDocument]) -> None:
        self._tokens, self._document = tokens, document
        self._num_changes = 0  # part of each key: what is made of old text meanwhile is not found
        self._split = lru_cache(maxsize=16)(self._made_passages)
        self._index = lru_cache(maxsize=8)(self._made_index)
        self._begun: set[tuple[int, Documents]] = set()
        self._being_made: dict[tuple[int, Documents], Future[Index]] = {}
        self._closing = threading.Event()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="kvchat-indexing")

    def close(self) -> None:
        self._closing.set()
        self._maker.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """Some text, or how tokens are counted, is another now."""
        self._num_changes += 1
        self._begun.clear()
        self._split.cache_clear()
        self._index.cache_clear()

    def passages(self, sha: str, left: Pages) -> tuple[Passage, ...]:
        return self._split(self._num_changes, sha, left)

    def index(self, documents: Documents) -> Index:
        """Waits for one that is being made."""
        key = (self._num_changes, documents)
        ahead = self._being_made.get(key)
        if ahead is not None:
            wait([ahead])
        return self._index(*key)

    def begin(self, sha: str) -> None:
        """Makes the index of a document in the background, if that was not done."""
        key = (self._num_changes, ((sha, frozenset[int]()),))
        if key in self._begun or self._closing.is_set():
            return
        self._begun.add(key)
        making = self._being_made[key] = self._maker.submit(self._index, *key)
        making.add_done_callback(lambda _: self._being_made.pop(key, None))

    def _made_passages(self, _num_changes: int, sha: str, left: Pages) -> tuple[Passage, ...]:
        return self._tokens.passages(self._document(sha), left)

    def _made_index(self, num_changes: int, documents: Documents) -> Index:
        return Index(
            [one for sha, left in documents for one in self._split(num_changes, sha, left)]
        )
