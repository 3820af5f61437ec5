"""Every call that scripts may make, with what our own scripts would never send: one sentence each,
and nothing is changed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.settings import Settings
from kvchat.ui import calls as screen_calls
from kvchat.ui.following import Following
from tests.documents.small_pdf import write_pdf
from tests.tiny import tiny_folder

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**63, 2**70, 1.5, float("inf"), "", "x", "\ud800", "../..", "9" * 5000,
    [], [{}], ["seed", []], {}, {"seed": []}, {"": {"a": [None]}}, {"model_folders": "x"},
)  # fmt: skip
WHOLE = (None, [], [{}], "x", 7, 1.5, True, {})
# These ask for nothing but what their name says.
_ACTS = ("measure_ceilings", "reload_model", "unload_model", "cancel_load")
NAMES = [one.__name__ for one in screen_calls.calls(None, None, "en")]  # type: ignore[arg-type]


class Noted(dict[str, Any]):
    """Arguments that know which of them were looked for."""

    def __init__(self, sent: dict[str, Any], keys: set[str]) -> None:
        super().__init__(sent)
        self._keys = keys

    def get(self, key: str, default: Any = None) -> Any:
        self._keys.add(key)
        return super().get(key, default)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder: Path = tmp_path_factory.mktemp("forged")
    model = tiny_folder("llama", folder / "tiny")
    found = Conversations(Settings(model=str(model), headroom=0), folder / "data")
    found.wait_ready(120)
    yield found
    found.close()


@pytest.fixture
def right(talks: Conversations, tmp_path: Path) -> dict[str, Any]:
    """What the screen would send, for a chat with a document."""
    chat = talks.new_chat()
    talks.rename(chat, "kept")
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, "words on a page")]])
    document = talks.add_document(chat, path, "a.pdf")
    talks.wait_documents(chat)
    return {"chat": chat, "document": document, "changes": {}, "turn": 1, "title": "b"}


def kept(talks: Conversations) -> Any:
    chats = [
        (row.id, row.title, [replace(one, ahead=None) for one in talks.documents(row.id)])
        for row in talks.chats()
    ]
    return chats, talks.library.documents(), talks.held.now


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _ACTS])
def test_what_is_refused_is_refused_in_a_sentence_and_changes_nothing(
    talks: Conversations, right: dict[str, Any], name: str
) -> None:
    found = screen_calls.calls(talks, Following(talks, "en"), "en")
    call = next(one for one in found if one.__name__ == name)
    keys: set[str] = set()

    def check(sent: Any) -> None:
        before = kept(talks)
        told = call(sent)  # what is raised here the screen calls an internal error
        assert isinstance(told, dict)
        if told.get("error") is not None:
            said = told["error"]["message"]
            assert said
            assert not {"{", "Error", "Traceback"} & set(said.split())
            assert kept(talks) == before

    check(Noted(right, keys))
    for sent in WHOLE if keys else ():
        check(sent)
    for key in sorted(keys):
        for odd in ODD if name != "whatif" else ODD[::3]:  # each of its answers takes a while
            check(Noted({key: odd}, keys))
            if "chat" in keys:
                check(Noted(right | {key: odd}, keys))
    for chat in [row.id for row in talks.chats()]:
        talks.delete(chat)
