"""The log with the texts taken out, to be shown to others with a report of a fault.

Kept: times, levels, which part spoke, kvchat's own fixed messages, which files and
lines an error passed through, the error's class. Taken out: everything else, since a message may
quote a question, an answer, a document or a path with somebody's name.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_RECORD = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ ([A-Z]+) ([\w.]+): (.*)$")
_FRAME = re.compile(r'^\s+File "(.+)", line (\d+), in (\S+)$')
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Full|Exhausted|OutOfMemory|Interrupt)\b)")
_HEADS = ("Traceback (most recent call last):", "The above exception", "During handling of")
# What kvchat's own code logs without any facts in it; a test keeps this in step with the code.
OWN_MESSAGES = (
    "loading failed",
    "measuring failed",
    "a reply failed",
    "a question could not be asked",
    "an answer failed",
    "a text could not be closed",
    "saving failed",
    "the formats could not be tried",
    "the cache is not what it should be",
    "the engine could not be closed",
    "the device's memory cannot be read",
    "the device could not be measured",
    "what could be read ahead is not known",
    "a text could not be read ahead",
    "vectors could not be made",
)
LEFT_OUT = "…"


def without_texts(lines: Iterable[str]) -> Iterator[str]:
    """The log's lines, fit to be shown. Runs of lines with nothing to show become one mark."""
    silent = False
    for line in lines:
        kept = _kept(line.rstrip("\n"))
        if kept is not None:
            yield kept
        elif not silent:
            yield f"    {LEFT_OUT}"
        silent = kept is None


def _kept(line: str) -> str | None:
    record, frame, error = _RECORD.match(line), _FRAME.match(line), _ERROR.match(line)
    if record is not None:
        said = record[4] if record[4] in OWN_MESSAGES else LEFT_OUT
        return f"{record[1]} {record[2]} {record[3]}: {said}"
    if frame is not None:
        return f"  {_place(frame[1])}:{frame[2]} in {frame[3]}"
    if error is not None:
        return f"{error[1]}: {LEFT_OUT}"
    return next((head for head in _HEADS if line.startswith(head)), None)


def _place(path: str) -> str:
    """From the package on: what comes before it may be somebody's home."""
    parts = re.split(r"[\\/]", path)
    for mark in ("site-packages", "kvchat"):
        if mark in parts:
            at = len(parts) - 1 - parts[::-1].index(mark)
            return "/".join(parts[at + (mark == "site-packages") :])
    return parts[-1]


def log_files(folder: Path) -> list[Path]:
    """The log and what it was rotated to, the oldest first."""
    found = sorted(folder.glob("kvchat.log.*"), key=lambda file: file.name, reverse=True)
    return [file for file in (*found, folder / "kvchat.log") if file.is_file()]


def shown_log(folder: Path) -> list[str]:
    """All that may be shown of the log; empty where there is none."""
    lines: list[str] = []
    for file in log_files(folder):
        lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(without_texts(lines))
