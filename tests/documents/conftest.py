"""Real documents are read once for all tests here."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kvchat.documents.reader import ReadDocument, read


@pytest.fixture(scope="session")
def shared_document(shared_pdfs: Path) -> Callable[[str], ReadDocument]:
    """A document of the shared folder by its file's name. Raises DocumentError as `read` does."""

    @cache
    def once(name: str) -> ReadDocument:
        return read(shared_pdfs / name, name)

    return once
