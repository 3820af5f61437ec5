"""The note in the data folder that a server leaves, and who believes it."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kvchat.cli_running import Running, forget, memory_of, note, running_on


class _Health(BaseHTTPRequestHandler):
    answer = b'{"status": "ok", "model": "ready"}'
    memory = b'{"device": {"budget": 1610612736, "headroom": 0}, "fits": null}'
    tokens: list[str | None]

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        told = self.path in ("/health", "/api/memory")
        self.send_response(200 if told else 404)
        self.end_headers()
        self.wfile.write(self.answer if self.path == "/health" else self.memory)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy that is not there
    monkeypatch.setattr(_Health, "tokens", [], raising=False)
    serving = HTTPServer(("127.0.0.1", 0), _Health)
    Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def test_found_while_it_answers(tmp_path: Path, server: str) -> None:
    assert running_on(tmp_path) is None
    running = Running(server, f"{server}/?t=secret", "secret", os.getpid())
    note(tmp_path, running)
    assert running_on(tmp_path) == running
    assert _Health.tokens == ["Bearer secret"]
    assert memory_of(running)["device"] == {"budget": 3 * 2**29, "headroom": 0}
    forget(tmp_path)
    assert running_on(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
def test_the_note_is_its_owners(tmp_path: Path, server: str) -> None:
    note(tmp_path, Running(server, server, None, os.getpid()))
    assert stat.S_IMODE((tmp_path / "running.json").stat().st_mode) == 0o600
    assert _Health.tokens == []


def test_a_longer_note_is_replaced_as_a_whole(tmp_path: Path, server: str) -> None:
    note(tmp_path, Running(server, server + "/?t=" + "x" * 500, "x" * 500, os.getpid()))
    (tmp_path / "running.json.new").write_text("y" * 2000)  # of a start that was killed
    note(tmp_path, Running(server, server, None, os.getpid()))
    assert running_on(tmp_path) == Running(server, server, None, os.getpid())


def test_a_note_that_outlived_its_server(tmp_path: Path, server: str) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    note(tmp_path, Running(server, server, None, gone.pid))
    assert running_on(tmp_path) is None  # though something answers at its port
    note(tmp_path, Running("http://127.0.0.1:9", "", None, os.getpid()))
    assert running_on(tmp_path) is None  # though a program has its number


@pytest.mark.parametrize("answer", [b"hello", b"[]", b"3", b'{"other": "program"}', b""])
def test_another_program_at_its_port(
    tmp_path: Path, server: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Health, "answer", answer)
    note(tmp_path, Running(server, server, None, os.getpid()))
    assert running_on(tmp_path) is None


@pytest.mark.parametrize("memory", [b"[]", b"{", b'"x"', b""])
def test_a_server_that_tells_no_memory(
    server: str, memory: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Health, "memory", memory)
    assert memory_of(Running(server, server, None, os.getpid())) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": "x"}', '"running"'])
def test_a_broken_note_counts_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "running.json").write_text(text)
    assert running_on(tmp_path) is None
    forget(tmp_path)


def test_the_note_of_another_program_stays(tmp_path: Path) -> None:
    note(tmp_path, Running("u", "u", None, os.getpid() + 1))
    forget(tmp_path)
    assert json.loads((tmp_path / "running.json").read_text())["pid"] == os.getpid() + 1
