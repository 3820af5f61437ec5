"""What the parts of the store share: the database, what was read of it, and the clock."""

from collections.abc import Callable

from kvchat.store.chains import Chains
from kvchat.store.database import Database
from kvchat.store.ledger_rows import KeptRows


class Base:
    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._chains = Chains()
        self._rows = KeptRows()
        self._num_deletions = 0

    def _forget(self) -> None:
        """Within a write that deletes: what was read before may be no more, or named otherwise."""
        self._num_deletions += 1
        self._chains.forget()
        self._rows.forget()


def clean(text: str) -> str:
    """The text as UTF-8 can hold it: surrogate pairs are joined, lone halves become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
