"""The file of what steps took: kept, read again, and no harm done where it is not ours."""

import json
import os
from pathlib import Path

import pytest

from kvchat.memory.calibrate import UNCALIBRATED, Calibration, Step
from kvchat.models.calibrations import keep_calibration, read_calibration

KNOWN = Calibration.of([Step(512, 512, 9000, 7000), Step(1, 513, 900, 700)])


def test_what_was_kept_is_read_again_for_its_key_alone(tmp_path: Path) -> None:
    keep_calibration(tmp_path, "a card", KNOWN)
    keep_calibration(tmp_path, "another", Calibration.of(KNOWN.steps[:1]))
    assert read_calibration(tmp_path, "a card") == KNOWN
    assert read_calibration(tmp_path, "another").steps == KNOWN.steps[:1]
    assert read_calibration(tmp_path, "a third") == UNCALIBRATED


def test_what_ran_out_is_not_remembered(tmp_path: Path) -> None:
    """It may have been another program's doing."""
    keep_calibration(tmp_path, "a card", KNOWN.with_shortage(512, 512, 9000))
    assert read_calibration(tmp_path, "a card") == KNOWN


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"version": 2, "keys": {"a card": {"steps": []}}}',
        b'{"version": 1, "keys": []}',
        b'{"version": 1, "keys": {"a card": 5}}',
        b'{"version": 1, "keys": {"a card": {"steps": 5}}}',
        b'{"version": 1, "keys": {"a card": {"steps": [[1, 2, 3]]}}}',
        b'{"version": 1, "keys": {"a card": {"steps": [[1, 2, 3, "4"]]}}}',
        b'{"version": 1, "keys": {"a card": {"steps": [[1, 2, 3, -4]]}}}',
        b'{"version": 1, "keys": {"a card": {"steps": [[1, 2, 3, 1e300]]}}}',
        b'{"version": 1, "keys": {"a card": {"steps": [[1, 2, 0, true]]}}}',
        b"[" * 100_000,
    ],
)
def test_a_broken_or_foreign_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "calibration.json"
    file.write_bytes(content)
    assert read_calibration(tmp_path, "a card") == UNCALIBRATED
    keep_calibration(tmp_path, "a card", KNOWN)
    assert read_calibration(tmp_path, "a card") == KNOWN


def test_a_failed_writing_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_calibration(tmp_path, "a card", KNOWN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        keep_calibration(tmp_path, "a card", Calibration.of(KNOWN.steps[:1]))
    assert read_calibration(tmp_path, "a card") == KNOWN
    assert [file.name for file in tmp_path.iterdir()] == ["calibration.json"]


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    for i in range(40):
        keep_calibration(tmp_path, f"card {i}", KNOWN)
    kept = json.loads((tmp_path / "calibration.json").read_text())["keys"]
    assert list(kept) == [f"card {i}" for i in range(8, 40)]
