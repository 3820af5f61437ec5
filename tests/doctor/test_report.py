"""The log that may be shown to others holds nothing that was said or read."""

import argparse
import logging
import re
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvchat
from kvchat import doctor
from kvchat.doctor.report import LEFT_OUT, OWN_MESSAGES, log_files, shown_log, without_texts
from kvchat.settings import Settings
from kvchat.store.store import Store

SECRET = "my password is ANANAS-7734 und 비밀번호"


def log_into(folder: Path) -> logging.Logger:
    """As `serve` writes it."""
    handler = RotatingFileHandler(
        folder / "kvchat.log", maxBytes=100_000, backupCount=3, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("kvchat.test")
    logger.handlers = [handler]
    logger.propagate = False
    return logger


def test_a_real_traceback_keeps_its_way_and_loses_its_words(tmp_path: Path):
    logger = log_into(tmp_path)
    try:
        raise ValueError(f"Conversation roles must alternate: {SECRET}\nsecond line {SECRET}")
    except ValueError:
        logger.exception("a reply failed")
    logger.warning("skipped %r of %s", SECRET, "/home/somebody/secret.pdf")
    logging.getLogger("kvchat.test").error("Traceback of %s", SECRET)
    shown = "\n".join(shown_log(tmp_path))
    for word in ("ANANAS", "password", "비밀", "somebody", "secret.pdf", "second line", "roles"):
        assert word not in shown
    assert "ERROR kvchat.test: a reply failed" in shown
    assert f"ValueError: {LEFT_OUT}" in shown
    assert "in test_a_real_traceback_keeps_its_way_and_loses_its_words" in shown
    assert "test_report.py:" in shown
    assert str(tmp_path) not in shown


def test_messages_that_are_kept_are_those_of_the_code():
    """Every literal that a logger of ours is given without facts, and nothing else."""
    package = Path(kvchat.__file__).parent
    said = set()
    for file in package.rglob("*.py"):
        found = re.findall(r'\blog(?:ger)?\.\w+\(\s*"([^"%]*)"', file.read_text(encoding="utf-8"))
        said.update(found)
    assert said == set(OWN_MESSAGES)


def test_other_libraries_say_only_that_they_spoke():
    line = f"2026-01-02 03:04:05,678 WARNING httpx: {SECRET}"
    assert list(without_texts([line])) == [f"2026-01-02 03:04:05 WARNING httpx: {LEFT_OUT}"]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/me/kvchat-main/kvchat/chat/turn.py", "kvchat/chat/turn.py"),
        ("/home/me/.venv/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py"),
        (r"C:\Users\Me\kvchat\kvchat\engine\worker.py", "kvchat/engine/worker.py"),
        ("/home/me/other.py", "other.py"),
    ],
)
def test_paths_begin_at_the_package(path: str, shown: str):
    line = f'  File "{path}", line 12, in run'
    assert list(without_texts([line])) == [f"  {shown}:12 in run"]


@given(st.lists(st.text(min_size=1), max_size=20))
def test_lines_that_are_no_log_are_left_out(lines: list[str]):
    kept = list(without_texts(f"x {line}" for line in lines))
    assert kept in ([], [f"    {LEFT_OUT}"])


def test_the_oldest_log_comes_first(tmp_path: Path):
    for name in ("kvchat.log", "kvchat.log.2", "kvchat.log.1", "other.log"):
        (tmp_path / name).write_text("")
    assert [f.name for f in log_files(tmp_path)] == ["kvchat.log.2", "kvchat.log.1", "kvchat.log"]
    assert shown_log(tmp_path / "nowhere") == []


def test_the_report_names_no_folder_and_no_interpreter(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path
):
    log_into(data_dir).error("measuring failed")
    with Store(data_dir) as store:
        store.add_ledger(None, "read_whole", {"name": f"{tmp_path}.pdf", "tokens": 7})
    args = argparse.Namespace(json=False, report=True)
    doctor.run(args, Settings(), data_dir, "en")
    out = capsys.readouterr().out
    assert "measuring failed" in out
    assert '"type": "doctor"' in out
    assert '"code": "read_whole"' in out
    assert str(tmp_path) not in out
