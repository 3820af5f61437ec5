"""What scripts may call: rows in the page's language, and nothing for those who cheat (C31)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvchat.ui import calls as screen_calls
from kvchat.ui.following import Following
from kvchat.wording import Language
from tests.ui.standin import StandIn


@pytest.fixture
def talks() -> Iterator[StandIn]:
    found = StandIn(token_s=0.0, page_s=0.0)
    yield found
    found.close()


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "uploads"
    folder.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder))
    return folder


def calls(talks: StandIn, lang: Language = "en") -> dict[str, Any]:
    found = screen_calls.calls(talks, Following(talks, lang), lang)
    return {call.__name__: call for call in found}


def uploaded(folder: Path, name: str = "a.pdf", content: bytes = b"%PDF-1.4") -> str:
    path = folder / "abc" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return str(path)


def test_an_upload_becomes_a_document_of_a_new_chat(talks: StandIn, uploads: Path) -> None:
    sent: dict[str, Any] = {"chat": None, "path": uploaded(uploads)}
    sent |= {"name": "C:\\fake\\..\\설명서\u0000.pdf"}
    found = calls(talks)["add_document"](sent)
    (row,) = talks.documents(found["chat"])
    assert row.name == "설명서.pdf"
    assert row.document == found["document"]
    assert not Path(sent["path"]).exists()


@pytest.mark.parametrize("path", ["/etc/hostname", "../../etc/hostname", "", "\0", "uploads"])
def test_a_path_outside_the_uploads_is_refused(talks: StandIn, uploads: Path, path: str) -> None:
    sent = {"chat": None, "path": path, "name": "a.pdf"}
    assert "upload" in calls(talks)["add_document"](sent)["error"]["message"]
    assert talks.chats() == []


def test_a_link_out_of_the_uploads_is_refused(talks: StandIn, uploads: Path) -> None:
    secret = uploads.parent / "secret.pdf"
    secret.write_bytes(b"%PDF-1.4")
    (uploads / "link.pdf").symlink_to(secret)
    sent = {"chat": None, "path": str(uploads / "link.pdf"), "name": "a.pdf"}
    assert "error" in calls(talks)["add_document"](sent)


def test_a_file_that_is_no_pdf_comes_back_with_a_sentence(talks: StandIn, uploads: Path) -> None:
    path = uploaded(uploads, content=b"no")
    found = calls(talks, "ko")["add_document"]({"chat": None, "path": path, "name": "a.pdf"})
    assert found["chat"] is None
    assert talks.chats() == []  # no empty chat stays behind
    assert "파일" in found["error"]["message"]
    chat = talks.new_chat()
    again = {"chat": chat, "path": uploaded(uploads, content=b"no"), "name": "a.pdf"}
    assert calls(talks)["add_document"](again)["chat"] == chat


@pytest.mark.parametrize("sent", [None, [], "x", {"chat": 3}, {"chat": {"$gt": ""}}, {}])
def test_arguments_are_checked(talks: StandIn, sent: object) -> None:
    found = calls(talks)
    for name in (
        "rename", "delete", "stop", "source", "remove_document", "apply", "preset", "pin",
        "undo_cost", "undo", "tidy", "find", "import_chat",
    ):  # fmt: skip
        assert set(found[name](sent)) == {"error"}


def test_backends_are_told_and_a_missing_fast_one_is_a_notice(talks: StandIn) -> None:
    """C12: what runs more slowly than it could is said where a chat begins."""
    row = {"layers": "full", "num_layers": 4, "decode": "numba", "prefill": "torch_flash"}
    slow = row | {"decode": "reference", "prefill": "reference", "fast": False, "why": "format"}
    talks.attention = [row | {"fast": True, "why": None}, slow]
    for lang, word in (("en", "numba"), ("ko", "커널")):
        found = calls(talks, lang)["status"]({})
        assert len(found["attention"]) == 2
        assert word in found["attention"][0]
        assert found["notices"] == [found["attention"][1]]


def test_notices_and_problems_are_sentences_of_the_page(talks: StandIn, uploads: Path) -> None:
    talks.notices = ("notice.english_only", "notice.plain_template")
    english, korean = calls(talks)["status"]({}), calls(talks, "ko")["status"]({})
    assert len(english["notices"]) == 1  # that the model speaks English only is no news there
    assert all(any("가" <= c <= "힣" for c in one) for one in korean["notices"])
    path = uploaded(uploads)
    chat = calls(talks)["add_document"]({"chat": None, "path": path, "name": "scan.pdf"})["chat"]
    (row,) = calls(talks, "ko")["documents"]({"chat": chat})["documents"]
    assert "올린 파일" in row["problem"]["message"]


def test_the_source_of_a_turn_is_what_was_written(talks: StandIn) -> None:
    chat = talks.new_chat()
    talks.ask(chat, "markup <b>").wait_ended(5)
    found = calls(talks)["source"]({"chat": chat, "turn": 1})
    assert found["text"] == "markup <b>"
    assert found["reply"].startswith("Here is a **table**")
    assert "error" in calls(talks)["source"]({"chat": chat, "turn": 2})


def test_settings_are_applied_all_or_none(talks: StandIn) -> None:
    apply = calls(talks)["apply"]
    assert set(apply({"changes": {"top_k": 3, "temperature": 9}})["mistakes"]) == {"temperature"}
    assert talks.settings.top_k == 0
    assert apply({"changes": {"top_k": 3}}) == {"reload": []}
    assert apply({"changes": {"threads": 2}})["reload"] == []
    assert apply({"changes": {"weights": "int8"}})["reload"] == ["Weights"]
    assert "error" in apply({"changes": {"system_text": "refuse me"}})
    assert "error" in apply({"changes": {}, "resets": ["nosuch"]})
    assert apply({"changes": {}, "resets": ["top_k"]}) == {"reload": []}
    assert talks.settings.top_k == 0


@pytest.mark.parametrize("wrong", [{"turn": "1"}, {"turn": 0}, {"turn": True}, {"page": -2}])
def test_a_pin_names_a_turn_or_a_page_by_its_number(talks: StandIn, wrong: dict[str, Any]) -> None:
    sent = {"chat": talks.new_chat(), "document": "d", "pinned": True} | wrong
    assert "error" in calls(talks)["pin"](sent)


def test_what_it_takes_to_take_back_is_told(talks: StandIn) -> None:
    chat = talks.new_chat()
    assert calls(talks)["undo_cost"]({"chat": chat, "entry": 3}) == {"tokens": 1200, "s": 4.2}
    assert "error" in calls(talks)["undo_cost"]({"chat": chat, "entry": "3"})
