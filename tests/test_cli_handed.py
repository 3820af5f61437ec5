"""`ask` while a server runs on the data folder: the question is handed to it, files and all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvchat import cli, cli_serve
from kvchat.chat import conversations
from kvchat.chat.conversations import Conversations
from kvchat.cli_running import Running, note
from kvchat.settings import Settings
from tests.api.conftest import Serve, Served
from tests.api.conftest import serve as serve
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf
from tests.program import REPO, START_S
from tests.tiny import tiny_folder

Running_ = Callable[..., Served]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def running(
    serve: Serve, data_dir: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running_]:
    """A server with a note in the data folder, which no second program may open."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    settings = Settings(model=str(model), max_new_tokens=6, temperature=0.0)
    opened: list[Conversations] = []

    def second(*_words: object) -> None:
        raise AssertionError("the data folder was opened a second time")

    def begin(token: str | None = None) -> Served:
        opened.append(Conversations(settings, data_dir))
        opened[0].wait_ready()
        monkeypatch.setattr(conversations, "Conversations", second)
        served = serve(app={"token": token} if token else None, conversations=opened[0])
        note(data_dir, Running(served.url, served.url, token, os.getpid()))
        return served

    yield begin
    for one in opened:
        one.close()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A name as people give them, and as forms find hard."""
    return write_pdf(tmp_path / '메모 "1".pdf', [[(50, 700, "The pump runs at night.")]])


def lines(capsys: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def files(data_dir: Path) -> list[str]:
    return [one.name for one in (data_dir / "documents").glob("*")]


def test_it_answers_in_words(running: Running_, notes: Path, capsys: Any) -> None:
    running(token="secret")
    words = ["--pdf", str(notes), "--seed", "7", "--max-new-tokens", "5", "--lang", "ko"]
    assert cli.main(["ask", "When does the pump run?", *words]) == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert f"{notes.name} 전체를 읽음" in said.err
    assert f"[{notes.name}, PDF 1쪽" in said.err
    assert "; 5토큰을 씀" in said.err


def test_json_lines_are_those_of_ask_alone(
    running: Running_, notes: Path, data_dir: Path, model: Path, capsys: Any
) -> None:
    question = ["ask", "When does the pump run?", "--pdf", str(notes), "--json"]
    its_own = ["--model", str(model), "--max-new-tokens", "6", "--temperature", "0"]
    assert cli.main([*question, *its_own, "--data-dir", str(data_dir / "alone")]) == 0
    alone = lines(capsys)
    served = running()
    assert cli.main(question) == 0
    handed = lines(capsys)

    def told(those: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """But for what was measured."""
        measured = {"s", "at_s", "number", "figures"}
        kept = [one for one in those if one["type"] not in ("frame", "prefilled")]
        return [{k: v for k, v in one.items() if k not in measured} for one in kept]

    assert told(handed) == told(alone)
    assert (
        {one["type"] for one in handed} == {one["type"] for one in alone} >= {"frame", "citation"}
    )
    assert handed[-1]["type"] == "done"
    assert handed[-1]["figures"].keys() == alone[-1]["figures"].keys()
    assert served.conversations.chats() == []
    assert served.conversations._store.chats(unlisted=True) == []
    assert files(data_dir) == files(data_dir / "alone")


def test_a_named_chat_goes_on(running: Running_, notes: Path, capsys: Any) -> None:
    talks = running().conversations
    assert cli.main(["ask", "one", "--chat", " my  notes ", "--pdf", str(notes)]) == 0
    assert cli.main(["ask", "two", "--chat", "my notes", "--pdf", str(notes)]) == 0
    (chat,) = talks.chats()
    assert chat.title == "my notes"
    assert [one.text for one in talks.history(chat.id)] == ["one", "two"]
    assert [row.name for row in talks.documents(chat.id)] == [notes.name]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_it_refuses_is_told(
    running: Running_, tmp_path: Path, data_dir: Path, capsys: Any, as_json: bool
) -> None:
    talks = running().conversations
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.4 and then nothing")
    flags = ["--json"] if as_json else []
    for question, file, code, words in (
        ("hello", ["--pdf", str(broken)], "document_damaged", "'broken.pdf'"),
        ("word " * 9000, [], "prompt_over_length", "tokens"),
    ):
        assert cli.main(["ask", question, *file, *flags]) == 1
        said = capsys.readouterr()
        if as_json:
            failed = json.loads(said.out.splitlines()[-1])
            assert (failed["type"], failed["code"]) == ("failed", code)
        told = failed["message"] if as_json else said.err.strip()
        assert words in told
        assert "\n" not in told
    assert talks._store.chats(unlisted=True) == []
    assert files(data_dir) == []


def test_a_locked_file_takes_its_password_from_the_line_or_the_terminal(
    running: Running_, notes: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running()
    locked = ["--pdf", str(lock(notes, "비밀 1"))]
    assert cli.main(["ask", "one", *locked]) == 1
    assert "password" in capsys.readouterr().err
    given = ["--pdf-password", "비밀 2", "--pdf-password", "비밀 1"]
    assert cli.main(["ask", "one", *locked, *given]) == 0
    typed = iter(["wrong", "비밀 1"])
    asked: list[str] = []
    monkeypatch.setattr(
        "kvchat.cli_ask.on_terminal", lambda: lambda prompt: asked.append(prompt) or next(typed)
    )
    capsys.readouterr()
    assert cli.main(["ask", "one", *locked]) == 0
    assert len(asked) == 2
    assert "wrong" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--memory-budget", "6GiB"], ["--set", "top_k=40"]])
def test_what_needs_a_start_of_its_own_says_where_the_page_is(
    running: Running_, capsys: Any, flags: list[str]
) -> None:
    served = running()
    assert cli.main(["ask", "what is it", *flags]) == 1
    said = capsys.readouterr().err
    assert flags[0] in said
    assert served.url in said


def asking(data_dir: Path, *words: str) -> "subprocess.Popen[str]":
    """A program of its own, as a person starts it."""
    return subprocess.Popen(
        [sys.executable, str(REPO / "app.py"), "ask", *words, "--json"],
        env=os.environ | {"KVCHAT_NO_BOOTSTRAP": "1", "KVCHAT_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_programs_of_their_own_hand_over_and_stop(
    running: Running_, notes: Path, data_dir: Path
) -> None:
    talks = running(token="secret").conversations
    question = ("When does the pump run?", "--pdf", str(notes))
    with asking(data_dir, *question, "--max-new-tokens", "4000") as broken_off:
        assert broken_off.stdout is not None
        assert any(json.loads(line)["type"] == "token" for line in broken_off.stdout)
        broken_off.send_signal(signal.SIGINT)
        _, err = broken_off.communicate(timeout=START_S)
    assert (broken_off.returncode, err) == (130, "")
    with asking(data_dir, *question, "--max-new-tokens", "3") as answered:
        out, err = answered.communicate(timeout=START_S)
    told = [json.loads(line) for line in out.splitlines()]
    assert (answered.returncode, err, told[-1]["type"]) == (0, "", "done")
    assert told[-1]["figures"]["reply_tokens"] == 3
    assert "citation" in {one["type"] for one in told}
    until = time.monotonic() + START_S
    while talks._store.chats(unlisted=True):  # of the one that left
        assert time.monotonic() < until
        time.sleep(0.01)
    assert files(data_dir) == []


@pytest.mark.parametrize("name", ["photo.png", "none.pdf"])
def test_bad_input_is_said_first(running: Running_, tmp_path: Path, capsys: Any, name: str) -> None:
    running()
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert cli.main(["ask", "  "]) == 1
    assert "empty message" in capsys.readouterr().err
    assert cli.main(["ask", "what is it", "--pdf", str(tmp_path / name)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"'{name}' ")
    assert "running" not in said
    assert "whatever its name says" not in said


def test_bad_input_is_said_before_anything_is_loaded(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(conversations, "Conversations", lambda *_: pytest.fail("loaded"))
    assert cli.main(["ask", ""]) == 1
    assert "empty message" in capsys.readouterr().err
    assert list(data_dir.iterdir()) == []


def test_serve_says_when_the_running_one_has_another_port(
    running: Running_, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = running()
    monkeypatch.setattr(cli_serve.signal, "signal", lambda *_: None)
    assert cli.main(["serve", "--no-browser", "--port", "99999"]) == 1
    assert "99999 is not a port." in capsys.readouterr().err
    assert cli.main(["serve", "--no-browser", "--port", "7999"]) == 0
    said = capsys.readouterr()
    assert served.url in said.out
    assert f"port {served.port}, not on 7999" in said.err
    for port in (str(served.port), "0"):
        assert cli.main(["serve", "--no-browser", "--port", port]) == 0
        assert capsys.readouterr().err == ""
