"""The real program with the built-in model, started as a person starts it: `python app.py …`."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import openai

from tests.tiny import place_builtin

REPO = Path(__file__).resolve().parent.parent
START_S = 300  # of imports and loading, on a machine that does much else


def builtin_folder_in(data_dir: Path) -> Path:
    """A data folder with the converted model in it; the path of that model."""
    folder = data_dir / "models" / "smollm2"
    if not folder.is_dir():
        place_builtin(data_dir)
    return folder


def start(data_dir: Path, *words: str) -> "subprocess.Popen[str]":
    builtin_folder_in(data_dir)
    environ = {"KVCHAT_NO_BOOTSTRAP": "1", "KVCHAT_DATA_DIR": str(data_dir), "LC_ALL": "C.UTF-8"}
    return subprocess.Popen(
        [sys.executable, str(REPO / "app.py"), *words],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def ask(data_dir: Path, *words: str) -> list[dict[str, Any]]:
    """The lines of `ask QUESTION … --json`, greedy."""
    with start(data_dir, "ask", *words, "--json", "--temperature", "0") as program:
        out, err = program.communicate(timeout=START_S * 2)
    assert program.returncode == 0, (out[-2000:], err)
    return [json.loads(line) for line in out.splitlines()]


class Serving:
    """`serve` on a free port (or that one), from the moment that it says where."""

    def __init__(self, data_dir: Path, *words: str, port: str = "0") -> None:
        self.program = start(data_dir, "serve", "--no-browser", "--port", port, *words)
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        self.url = line.strip().rpartition(" ")[2]
        if not self.url.startswith("http://127.0.0.1:"):
            raise AssertionError((line, *self.program.communicate(timeout=30)))

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=START_S
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.program.send_signal(how)
        self.program.communicate(timeout=60)
        return self.program.returncode
