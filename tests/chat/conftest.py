"""Conversations over a tiny random model, with a real store in an empty folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.models.verdicts import keep_verdicts
from tests.starts import resolve
from tests.tiny import key_of, passed_verdicts, tiny_folder

Start = Callable[..., Conversations]


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def start(tiny_path: Path, data_dir: Path) -> Iterator[Start]:
    """Starts the conversations; again after a `close`, on the same data folder. The model was
    measured, and passed in the formats that a planner steps down to.
    """
    keep_verdicts(data_dir, key_of(tiny_path), passed_verdicts())
    opened: list[Conversations] = []

    def begin(**flags: object) -> Conversations:
        while opened:
            opened.pop().close()
        usual = {"model": str(tiny_path), "temperature": 0, "max_new_tokens": 12, "headroom": 0}
        opened.append(Conversations(resolve(flags=usual | flags), data_dir))
        opened[-1].wait_ready(120)
        return opened[-1]

    yield begin
    while opened:
        opened.pop().close()
