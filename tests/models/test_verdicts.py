"""Verdicts: kept by model and pair, whole or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.errors import StoreError
from kvchat.models.verdicts import (
    LEAST_SAME_PERCENT,
    MOST_KL,
    Verdict,
    keep_verdicts,
    verdicts,
)

ONE = Verdict("int6/int4", 0.0018, 97.6, -0.2, 1024, "wording.en", 1.5)


def test_read_as_it_was_kept(tmp_path: Path) -> None:
    other = replace(ONE, pair="int8/int8", kl=0.00003)
    keep_verdicts(tmp_path / "new", "모델", [ONE, other])
    keep_verdicts(tmp_path / "new", "another", [other])
    newer = replace(ONE, kl=0.5, measured_at_s=2.0)
    keep_verdicts(tmp_path / "new", "모델", [newer])
    assert verdicts(tmp_path / "new", "모델") == {"int6/int4": newer, "int8/int8": other}
    assert verdicts(tmp_path / "new", "another") == {"int8/int8": other}
    assert verdicts(tmp_path / "new", "unknown") == {}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["verdicts.json"]


@pytest.mark.parametrize(
    ("kl", "same", "passed"),
    [
        (0.0, 100.0, True),
        (MOST_KL, LEAST_SAME_PERCENT, True),
        (MOST_KL * 1.001, 100.0, False),
        (0.0, LEAST_SAME_PERCENT - 0.01, False),
        (float("nan"), 100.0, False),
    ],
)
def test_passed_within_both_bounds(kl: float, same: float, passed: bool) -> None:
    assert replace(ONE, kl=kl, same_percent=same).passed is passed


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"version": 99, "models": {"m": {}}}', '{"version": 1, "models": []}',
     '{"version": 1, "models": {"m": {"fp": {"kl": 1}}}}', '{"version": 1, "models": {"m": [1]}}'],
)  # fmt: skip
def test_a_damaged_file_is_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "verdicts.json").write_text(content)
    assert verdicts(tmp_path, "m") == {}
    keep_verdicts(tmp_path, "m", [ONE])
    assert verdicts(tmp_path, "m") == {"int6/int4": ONE}


def test_what_cannot_be_written_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_verdicts(tmp_path, "m", [ONE])
    before = json.loads((tmp_path / "verdicts.json").read_text())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError) as caught:
        keep_verdicts(tmp_path, "m", [replace(ONE, kl=9.0)])
    assert "No space left" in caught.value.line()
    assert json.loads((tmp_path / "verdicts.json").read_text()) == before
    assert [file.name for file in tmp_path.iterdir()] == ["verdicts.json"]
