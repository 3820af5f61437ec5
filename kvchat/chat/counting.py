"""How many tokens documents take, in the model's own: each page is counted once, whoever asks.

A text of millions of letters takes seconds: whoever draws something takes what is known by then.
Knows no store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kvchat.documents.fence import fence_document, fenced_page
from kvchat.documents.pages import Page, ReadDocument
from kvchat.documents.passages import Passage, split, without

CountTokens = Callable[[str], int]
Pages = frozenset[int]
"""Numbers of pages that are left out."""

LONG_CHARACTERS = 1_000_000
"""What is longer is counted page by page alone: exact but for a token at a page's edge."""


class TokenCounts:
    """`count` is None until a model is there. May be called by any thread; none of them waits for
    more than another's page, or short document.
    """

    def __init__(self) -> None:
        self.count: CountTokens | None = None
        self._lock = threading.Lock()
        self._whole: dict[tuple[str, Pages, int], int] = {}
        self._pages: dict[tuple[str, int], tuple[str, int]] = {}
        self._counter = ThreadPoolExecutor(1, thread_name_prefix="kvchat-counting")
        self._asked: set[str] = set()
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()
        self._counter.shutdown(wait=True, cancel_futures=True)

    def use(self, count: CountTokens) -> None:
        with self._lock:
            self.count = count
            self._whole.clear()
            self._pages.clear()

    def forget(self, sha: str) -> None:
        """Its text is another now; pages that stayed the same stay counted."""
        for key in [key for key in list(self._whole) if key[0] == sha]:
            self._whole.pop(key, None)

    def of_whole(self, document: ReadDocument, left: Pages = frozenset()) -> int:
        """The whole document as it stands in a prompt, without the pages that are left out; 0 until
        a model is there to count.
        """
        size = _characters(document)
        key = (document.sha256, left, size)
        if key in self._whole or self.count is None:
            return self._whole.get(key, 0)
        if size > LONG_CHARACTERS:
            return self._of_long(document, left, key)
        with self._lock:  # who waited for it has it now
            found = self._whole.get(key) or self.count(fence_document(document, left))
            self._whole[key] = found
        return found

    def _of_long(self, document: ReadDocument, left: Pages, key: tuple[str, Pages, int]) -> int:
        """Another model may come meanwhile: it counts for itself."""
        count = self.count
        found = self._by_page(document, left)
        with self._lock:
            if self.count is count:
                self._whole[key] = found
        return found

    def of_whole_if_known(self, document: ReadDocument) -> int:
        """The same at once: 0 for a long one that is still being counted, in the background."""
        size = _characters(document)
        known = self._whole.get((document.sha256, frozenset(), size))
        if known is not None or self.count is None or size <= LONG_CHARACTERS:
            return known if known is not None else self.of_whole(document)
        if document.sha256 not in self._asked and not self._closing.is_set():
            self._asked.add(document.sha256)
            self._counter.submit(self._count_ahead, document)
        return 0

    def _count_ahead(self, document: ReadDocument) -> None:
        """Page by page, so that it can end in between."""
        try:
            for page in document.pages:
                if self._closing.is_set():
                    return
                self.of_page(document.sha256, page)
            self.of_whole(document)
        finally:
            self._asked.discard(document.sha256)

    def of_page(self, sha: str, page: Page) -> int:
        """A page as it stands in a prompt; 0 for one without text."""
        if self.count is None or not page.has_text:
            return 0
        with self._lock:
            return self._of_page(sha, page)

    def passages(self, document: ReadDocument, left: Pages) -> tuple[Passage, ...]:
        """The document cut into passages, without the pages that are left out."""
        assert self.count is not None
        mark = self.count(fenced_page(1, ""))
        kept = without(document, left)
        tokens = {
            page.text: max(1, self.of_page(document.sha256, page) - mark)
            for page in kept.pages
            if page.has_text
        }
        return split(kept, tokens.__getitem__)

    def _by_page(self, document: ReadDocument, left: Pages) -> int:
        assert self.count is not None
        texts = [page for page in document.pages if page.has_text]
        bare = without(document, [page.number for page in texts])
        kept = (page for page in texts if page.number not in left)
        return self.count(fence_document(bare)) + sum(
            self.of_page(document.sha256, page) for page in kept
        )

    def _of_page(self, sha: str, page: Page) -> int:
        assert self.count is not None
        text, tokens = self._pages.get((sha, page.number), ("", 0))
        if text != page.text or not tokens:
            tokens = self.count(fenced_page(page.number, page.text))
            self._pages[sha, page.number] = page.text, tokens
        return tokens


def _characters(document: ReadDocument) -> int:
    return sum(len(page.text) for page in document.pages)
