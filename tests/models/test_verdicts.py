"""Verdicts: kept by model and pair, whole or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.errors import SettingsError, StoreError
from kvchat.memory.verdicts import STEPS, failure_of
from kvchat.models.verdicts import (
    LEAST_SAME_PERCENT,
    MOST_KL,
    Verdict,
    keep_verdicts,
    notices_about,
    refuse_failed,
    verdict_key,
    verdicts,
)
from kvchat.wording import LANGUAGES, table
from tests.starts import resolve
from tests.tiny import tiny_folder

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
     '{"version": 1, "models": {"m": {"fp": {"kl": 1}}}}', '{"version": 1, "models": {"m": [1]}}',
     '{"version": 1, "models": {"m": {"int9": {"kl": 1, "same_percent": 1, "perplexity_percent": 1,'
     ' "num_scored": 1, "text": "t", "measured_at_s": 1}}}}',
     '{"version": 1, "models": {"m": {"int8": {"kl": "1", "same_percent": 1, "perplexity_percent":'
     ' 1, "num_scored": 1, "text": "t", "measured_at_s": 1}}}}'],
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


def test_the_built_in_model_s_come_with_the_program_and_ones_own_go_before(tmp_path: Path) -> None:
    """Measured by this very bench: what a newcomer may choose, without having measured anything."""
    shipped = verdicts(tmp_path, "smollm2")
    assert all(failure_of(pair, shipped) is None for pair in STEPS)
    assert {str(pair) for pair in STEPS} <= shipped.keys()
    assert not shipped["int2/int2"].passed
    assert all(one.num_scored == 1024 and one.measured_at_s > 1.7e9 for one in shipped.values())
    own = replace(ONE, kl=0.5)
    keep_verdicts(tmp_path, "smollm2", [own])
    assert verdicts(tmp_path, "smollm2") == shipped | {"int6/int4": own}
    rows = json.loads((tmp_path / "verdicts.json").read_text())["models"]
    assert list(rows["smollm2"]) == ["int6/int4"]


def test_layers_of_their_own_have_verdicts_of_their_own(tmp_path: Path) -> None:
    """What passed without them holds; what failed without them is not known with them."""
    failed = replace(ONE, pair="int4/int4", kl=0.5)
    keep_verdicts(tmp_path, "m", [ONE, failed])
    assert verdicts(tmp_path, "m", "0=fp/fp") == {"int6/int4": ONE}
    better = replace(failed, kl=0.01)
    keep_verdicts(tmp_path, "m", [better], "0=fp/fp")
    assert verdicts(tmp_path, "m", "0=fp/fp") == {"int6/int4": ONE, "int4/int4": better}
    assert verdicts(tmp_path, "m") == {"int6/int4": ONE, "int4/int4": failed}


@pytest.mark.parametrize("name", ["seal_format", "floor_format", "disk_format"])
def test_a_failed_format_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    keep_verdicts(tmp_path, "m", [replace(ONE, pair="int4/int4", kl=0.25, same_percent=70.5)])
    flags: dict[str, object] = {"model": str(tmp_path / "m"), name: "int4"}
    for value in ("int4", "int2"):  # what is less exact than a pair that failed
        with pytest.raises(SettingsError) as caught:
            refuse_failed(resolve(flags=flags | {name: value}), tmp_path)
        for lang in LANGUAGES:
            line = caught.value.line(lang)
            assert "\n" not in line
            for fact in (name, value, "m", "int4/int4", "0.2500", "70.5", "allow_unproven"):
                assert fact in line
    refuse_failed(resolve(flags=flags | {"allow_unproven": True}), tmp_path)
    refuse_failed(resolve(flags=flags | {name: "int8"}), tmp_path)
    refuse_failed(resolve(flags=flags | {"model": "elsewhere/other"}), tmp_path)
    refuse_failed(resolve(flags=flags), tmp_path, ["temperature"])


def test_a_default_that_failed_is_nobody_s_choice(tmp_path: Path) -> None:
    keep_verdicts(tmp_path, "m", [replace(ONE, kl=0.5)])
    refuse_failed(resolve(flags={"model": str(tmp_path / "m")}), tmp_path)


@pytest.mark.parametrize(
    ("seal", "kl", "allow", "said"),
    [
        ("fp", None, False, None),
        ("int8", None, False, "notice.format_unmeasured"),
        ("int8", None, True, "notice.format_unmeasured"),
        ("int8", 0.001, False, None),
        ("int8", 0.5, False, "notice.format_failed"),
        ("int8", 0.5, True, None),
    ],
)
def test_what_is_stored_in_formats_that_nothing_is_known_of_is_said(
    seal: str, kl: float | None, allow: bool, said: str | None
) -> None:
    known = {} if kl is None else {"int8/int8": replace(ONE, pair="int8/int8", kl=kl)}
    settings = resolve(flags={"seal_format": seal, "allow_unproven": allow})
    assert notices_about(settings, known) == ((said,) if said else ())
    for lang in LANGUAGES:
        assert said is None or table()[said][lang]


def test_folders_of_one_name_are_not_one_model(tmp_path: Path) -> None:
    """The weights tell, and how they are loaded; the built-in model has its name."""
    folders = [tiny_folder("llama", tmp_path / str(i) / "model", seed=i) for i in (1, 2)]
    changes = [{}, {"weights": "int8"}]
    keys = [
        verdict_key(resolve(flags={"model": str(folder)} | change))
        for folder in folders
        for change in changes
    ]
    assert len(set(keys)) == 4
    assert keys == [verdict_key(resolve(flags={"model": str(folder)} | change))
                    for folder in folders for change in changes]  # fmt: skip
    assert all(key.startswith("model ") for key in keys)
    (folders[0] / "config.json").unlink()
    assert verdict_key(resolve(flags={"model": str(folders[0])})) == "model"
    assert verdict_key(resolve()) == "smollm2"
