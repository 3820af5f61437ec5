"""`kvchat serve` as a program: it answers, a second start finds it, and it ends cleanly."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_folder

REPO = Path(__file__).resolve().parent.parent

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(data_dir: Path) -> Iterator[Start]:
    """Starts `kvchat` with words; whatever still runs at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, **environ: str) -> "subprocess.Popen[str]":
        program = subprocess.Popen(
            [sys.executable, "-m", "kvchat.cli", *words],
            cwd=REPO,
            env=os.environ | {"LC_ALL": "C.UTF-8"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        return program

    yield begin
    for program in started:
        program.kill()
        program.communicate()


def url_from(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    line = program.stdout.readline()
    match = re.fullmatch(r"kvchat is ready at (http://127\.0\.0\.1:\d+)\n", line)
    assert match, (line, program.stderr.read() if program.stderr else "")
    return match[1]


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_one_server_on_a_data_folder(start: Start, model: Path, data_dir: Path) -> None:
    serve = ("serve", "--no-browser", "--model", str(model))
    first = start(*serve, "--port", "0")
    url = url_from(first)
    status, body = get(f"{url}/health")
    assert status == 200
    assert json.loads(body)["model"] in ("loading", "ready")
    assert get(f"{url}/ko/")[0] == 200
    assert get(f"{url}/health", Host="evil.example")[0] == 421

    out, err = start(*serve).communicate(timeout=120)
    assert (out, err) == (f"kvchat is already running at {url}\n", "")

    other = start(*serve, "--data-dir", str(data_dir / "other"), "--port", url.rpartition(":")[2])
    out, err = other.communicate(timeout=120)
    assert other.returncode == 1
    assert "is taken by another program" in err
    assert err.count("\n") == 1
    assert not (data_dir / "other").exists()

    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 143
    assert (out, err) == ("", "")
    assert not (data_dir / "running.json").exists()
    assert (data_dir / "kvchat.log").stat().st_mode & 0o077 == 0


def test_a_model_that_is_not_there_ends_it(start: Start, data_dir: Path) -> None:
    program = start("--no-browser", "--port", "0", "--model", str(data_dir / "no-model"))
    _, err = program.communicate(timeout=120)
    assert program.returncode == 1
    assert "no-model" in err
    assert err.count("\n") == 1
    assert not (data_dir / "running.json").exists()


def test_beyond_loopback_a_token_is_asked_for(start: Start, model: Path) -> None:
    program = start(
        *("--no-browser", "--model", str(model), "--host", "0.0.0.0", "--port", "0"),
        KVCHAT_TOKEN="let-me-in",
    )
    url = url_from(program)
    assert get(f"{url}/health")[0] == 401
    assert get(f"{url}/health", Authorization="Bearer let-me-in")[0] == 200
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "other machines" in err
    assert "?t=let-me-in" in err
