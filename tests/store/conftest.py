"""A store in a folder of its own, and a clock that the test moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.store.store import Store


class Clock:
    """Each look is a second later than the one before."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "kept", Clock()) as store:
        yield store
        assert store.verify() == []
