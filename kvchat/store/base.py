"""What the parts of the store share: the database and the clock."""

from collections.abc import Callable

from kvchat.store.database import Database


class Base:
    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock


def clean(text: str) -> str:
    """The text as UTF-8 can hold it: surrogate pairs are joined, lone halves become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
