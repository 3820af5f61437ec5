"""`kvchat ask`: one question, as words or as JSON lines; what it keeps, and what it must not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat import cli
from kvchat.chat.conversations import Conversations
from kvchat.settings import Settings
from kvchat.store.store import Store
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf
from tests.tiny import tiny_folder

Ask = Callable[..., int]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def ask(model: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks with a tiny model; returns the exit code."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    def run(*words: str) -> int:
        usual = ("--model", str(model), "--max-new-tokens", "6", "--temperature", "0")
        return cli.main(["ask", *words, *usual])

    return run


def kept(data_dir: Path) -> dict[str, list[str]]:
    """The chats in the store, listed or not, by title, with their questions."""
    with Store(data_dir) as store:
        assert store.verify() == []
        return {
            chat.title: [one.content for one in store.messages(chat.id) if one.role == "user"]
            for chat in store.chats(unlisted=True)
        }


def files(data_dir: Path) -> list[str]:
    return [one.name for one in (data_dir / "documents").glob("*")]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_pdf(tmp_path / "notes.pdf", [[(50, 700, "The pump runs at night.")]])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.pdf"
    path.write_bytes(b"%PDF-1.4 and then nothing")
    return path


def test_json_lines(ask: Ask, notes: Path, data_dir: Path, capsys: Any) -> None:
    assert ask("When does the pump run?", "--pdf", str(notes), "--json") == 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    lines = [json.loads(line) for line in said.out.splitlines()]
    kinds = {line["type"] for line in lines}
    assert {"took", "citation", "prefilled", "token", "frame"} < kinds
    assert lines[-1]["type"] == "done"
    assert [line["code"] for line in lines if line["type"] == "took"] == ["read_whole"]
    text = "".join(line["text"] for line in lines if line["type"] == "token")
    assert lines[-1]["text"] == text
    frame = next(line for line in lines if line["type"] == "frame")
    assert [one["name"] for one in frame["documents"]] == ["notes.pdf"]
    assert frame["runtime"]["stage"]


def test_words(ask: Ask, notes: Path, capsys: Any) -> None:
    assert ask("When does the pump run?", "--pdf", str(notes), "--lang", "ko") == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert "notes.pdf 전체를 읽음" in said.err
    assert "notes.pdf, PDF 1쪽" in said.err


def test_without_a_name_nothing_of_the_chat_is_kept(ask: Ask, notes: Path, data_dir: Path) -> None:
    assert ask("hello", "--pdf", str(notes)) == 0
    assert kept(data_dir) == {}


def test_a_named_chat_goes_on(ask: Ask, notes: Path, data_dir: Path) -> None:
    assert ask("one", "--chat", " my  notes ", "--pdf", str(notes)) == 0
    assert ask("two", "--chat", "my notes", "--pdf", str(notes)) == 0
    assert ask("other", "--chat", "another") == 0
    assert kept(data_dir) == {"my notes": ["one", "two"], "another": ["other"]}
    assert len(files(data_dir)) == 1


@pytest.mark.parametrize("named", [(), ("--chat", "notes")])
def test_a_file_that_cannot_be_read_ends_it_and_leaves_nothing(
    ask: Ask, notes: Path, broken: Path, data_dir: Path, capsys: Any, named: tuple[str, ...]
) -> None:
    assert ask("hello", "--pdf", str(notes), "--pdf", str(broken), "--json", *named) == 1
    (line,) = capsys.readouterr().out.splitlines()
    failed = json.loads(line)
    assert (failed["type"], failed["code"]) == ("failed", "document_damaged")
    assert "broken.pdf" in failed["message"]
    assert kept(data_dir) == {}
    assert files(data_dir) == []


def test_a_file_that_cannot_be_read_does_not_spoil_the_chat(
    ask: Ask, broken: Path, data_dir: Path
) -> None:
    assert ask("one", "--chat", "notes") == 0
    assert ask("two", "--chat", "notes", "--pdf", str(broken)) == 1
    assert ask("three", "--chat", "notes") == 0
    assert kept(data_dir) == {"notes": ["one", "three"]}
    assert files(data_dir) == []


def test_a_file_that_is_not_there(ask: Ask, data_dir: Path, capsys: Any) -> None:
    assert ask("one", "--chat", "notes", "--pdf", "nowhere/none.pdf") == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert kept(data_dir) == {}


def test_an_empty_question_and_a_wrong_model_leave_nothing(
    ask: Ask, data_dir: Path, capsys: Any
) -> None:
    assert ask("  ", "--chat", "notes") == 1
    assert cli.main(["ask", "hello", "--chat", "notes", "--model", str(data_dir / "none")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert kept(data_dir) == {}


def test_a_budget_is_kept_and_told(ask: Ask, data_dir: Path, capsys: Any) -> None:
    assert ask("hello " * 150, "--memory-budget", "1500000", "--json") == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["type"], last["code"]) == ("failed", "prompt_over_memory")
    assert kept(data_dir) == {}


def test_what_a_refusal_says_to_allow_is_enough(ask: Ask, model: Path, capsys: Any) -> None:
    assert ask("hello", "--memory-budget", "1MiB") == 1
    said = capsys.readouterr().err
    least = re.search(r"[Aa]llow at least ([0-9.,]+ MiB)", said)
    assert least is not None, said
    assert said.count(least[1]) == 2  # what one short answer takes is what is to be allowed
    assert ask("hello", "--memory-budget", least[1]) == 0
    cli.main(["doctor", "--model", str(model), "--memory-budget", "1MiB"])
    assert f"at least {least[1]}" in capsys.readouterr().out


def test_what_a_killed_ask_left_is_gone_at_the_next(ask: Ask, notes: Path, data_dir: Path) -> None:
    conversations = Conversations(Settings(model=str(data_dir / "none")), data_dir)
    chat = conversations.new_chat(listed=False)
    conversations.add_document(chat, notes, "notes.pdf")
    conversations.wait_documents(chat)
    conversations.close()
    assert ask("hello") == 0
    assert kept(data_dir) == {}
    assert files(data_dir) == []


def test_a_locked_file_takes_its_password_from_the_line_or_the_terminal(
    ask: Ask, notes: Path, data_dir: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = str(lock(notes, "비밀 1"))
    assert ask("one", "--pdf", locked) == 1
    assert "password" in capsys.readouterr().err
    assert ask("one", "--pdf", locked, "--pdf-password", "비밀 2", "--pdf-password", "비밀 1") == 0
    typed = iter(["wrong", "비밀 1"])
    asked: list[str] = []
    monkeypatch.setattr(
        "kvchat.cli_ask.on_terminal", lambda: lambda prompt: asked.append(prompt) or next(typed)
    )
    capsys.readouterr()
    assert ask("one", "--pdf", locked) == 0
    assert len(asked) == 2
    assert "wrong" in capsys.readouterr().err
    assert files(data_dir) == []
