"""`ask` while a server runs on the data folder: the question is handed to it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat import cli, cli_serve
from kvchat.chat import conversations
from kvchat.cli_running import Running, note
from tests.api.conftest import Serve, Served
from tests.api.conftest import serve as serve
from tests.documents.small_pdf import write_pdf

Running_ = Callable[..., Served]


@pytest.fixture
def running(serve: Serve, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Running_:
    """A server with a note in the data folder, which no second program may open."""

    def second(*_words: object) -> None:
        raise AssertionError("the data folder was opened a second time")

    monkeypatch.setattr(conversations, "Conversations", second)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    def begin(token: str | None = None, **standin: Any) -> Served:
        served = serve(app={"token": token} if token else None, **standin)
        note(data_dir, Running(served.url, served.url, token, os.getpid()))
        return served

    return begin


def test_it_answers_in_words(running: Running_, capsys: Any) -> None:
    served = running(token="secret")
    assert cli.main(["ask", "what is it", "--seed", "7", "--max-new-tokens", "5"]) == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert "tokens read" in said.err
    messages, overrides, _ = served.conversations.asked[0]
    assert [one["role"] for one in messages] == ["system", "user"]
    assert messages[1]["content"] == "what is it"
    assert overrides == {"seed": 7, "max_new_tokens": 5}


def test_json_lines_are_those_of_ask(running: Running_, capsys: Any) -> None:
    running()
    assert cli.main(["ask", "what is it", "--json"]) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert {line["type"] for line in lines} == {"token", "done"}
    assert lines[-1]["text"] == "".join(line["text"] for line in lines[:-1])
    assert lines[-1]["figures"]["reply_tokens"] > 0
    assert lines[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_it_refuses_is_told(running: Running_, capsys: Any, as_json: bool) -> None:
    running(context_tokens=4)
    words = ["ask", "word " * 50, *(["--json"] if as_json else [])]
    assert cli.main(words) == 1
    said = capsys.readouterr()
    told = json.loads(said.out)["message"] if as_json else said.err
    assert "Make it shorter." in told


@pytest.mark.parametrize(
    "flags", [["--chat", "notes"], ["--memory-budget", "6GiB"], ["--set", "top_k=40"], ["--pdf"]]
)
def test_what_needs_a_start_of_its_own_says_where_the_page_is(
    running: Running_, tmp_path: Path, capsys: Any, flags: list[str]
) -> None:
    served = running()
    if flags == ["--pdf"]:
        flags = ["--pdf", str(write_pdf(tmp_path / "notes.pdf", [[(50, 700, "The pump runs.")]]))]
    assert cli.main(["ask", "what is it", *flags]) == 1
    said = capsys.readouterr().err
    assert flags[0] in said
    assert served.url in said
    assert served.conversations.asked == []


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
