"""What doctor says of memory: whose it is, how much stays free and why, what was measured."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from kvchat import doctor
from kvchat.device.cuda import AcceleratorProbe
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory, pick_device
from kvchat.device.nvml import Nvml
from kvchat.doctor import machine, place
from kvchat.doctor.telling import as_text
from kvchat.memory.calibrate import Calibration, Step
from kvchat.models.calibrations import calibration_key, keep_calibration
from kvchat.models.digest import weights_digest
from kvchat.settings import Settings, changed
from kvchat.units import GIB
from kvchat.wording import LANGUAGES, say, table
from tests.device.fake_nvml import FakeNvml, Process
from tests.device.liars import LIES, Liar
from tests.device.test_memory import CUDA, FakeBackend
from tests.tiny import tiny_folder

Reading = Callable[..., dict[str, Any]]


@pytest.fixture
def told_of(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """The facts about memory with this probe, and these settings."""

    def read(probe: object, **settings: object) -> dict[str, Any]:
        monkeypatch.setattr(machine, "probe_for", lambda _: probe)
        return machine.memory(changed(Settings(), settings)).facts

    return read


def card(library: FakeNvml | None) -> AcceleratorProbe:
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    return AcceleratorProbe(CUDA, backend, Nvml(library))


def lines(memory: dict[str, Any], lang: Any) -> str:
    """As `doctor` prints them; the other parts are of this machine."""
    facts = {
        "system": machine.system().facts,
        "compute": machine.compute().facts,
        "memory": memory,
        "data": {"exists": True, "folder": "/data", "free": GIB},
        "model": {"model": "x", "builtin": "ready"},
        "tools": {"tesseract": None},
        "port": {"running": None, "port": 7860},
        "packages": {"packages": []},
    }
    return "\n".join(as_text(facts, [], lang))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_other_programs_are_named(told_of: Reading, lang: Any) -> None:
    library = FakeNvml({"GPU-aaaa": [Process("own", GIB), Process(1, 3 * GIB)]})
    facts = told_of(card(library))
    assert facts["nvml"] == "ready"
    assert [(one["pid"], one["bytes_used"]) for one in facts["programs"]] == [(1, 3 * GIB)]
    said = lines(facts, lang)
    assert say("doctor.nvml.ready", lang) in said
    assert "(pid 1): 3.00 GiB" in said


@pytest.mark.parametrize(
    ("library", "state"),
    [
        (None, "absent"),
        (FakeNvml({}, refuses=True), "refuses"),
        (FakeNvml({"GPU-other": []}), "unknown_card"),
        (FakeNvml({"GPU-aaaa": [Process("own", 1)]}, sliced=True), "sliced"),
    ],
)
def test_why_nvml_tells_nothing(told_of: Reading, library: FakeNvml | None, state: str) -> None:
    facts = told_of(card(library))
    assert facts["nvml"] == state
    assert facts["programs"] == []
    assert facts["estimated"] == ["other_processes"]
    for lang in LANGUAGES:
        assert say(f"doctor.nvml.{state}", lang) in lines(facts, lang)
    assert set(table()["doctor.nvml.hangs"]) == set(LANGUAGES)


def test_the_headroom_and_why_it_is_so_much(told_of: Reading) -> None:
    roomy = FakeProbe([DeviceMemory("cpu", 32 * GIB, 9 * GIB, 0, 0, 0, 0.0, shared=True)])
    facts = told_of(roomy)
    assert (facts["headroom"], facts["headroom_reason"]) == (2 * GIB, "cpu")
    assert facts["usable"] == 7 * GIB
    assert say("headroom.cpu", "en") in lines(facts, "en")
    facts = told_of(roomy, headroom="1GiB", memory_budget="3GiB")
    assert (facts["headroom"], facts["headroom_reason"]) == (GIB, "setting")
    assert facts["usable"] == 3 * GIB
    assert say("headroom.setting", "ko") in lines(facts, "ko")


def test_a_device_that_cannot_be_read_is_a_problem_and_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    liar = Liar(DeviceMemory("cpu", 1, 1, 0, 0, 0, 0.0))
    liar.lie = LIES["raises"]
    monkeypatch.setattr(machine, "probe_for", lambda _: liar)
    found = machine.memory(Settings())
    assert [(one.code, one.fatal) for one in found.problems] == [("device_unreadable", True)]
    assert "headroom" not in lines(found.facts, "en")


def test_what_was_measured_of_a_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_folder("llama", tmp_path / "tiny")
    settings = changed(Settings(), {"model": str(model), "dtype": "fp32"})
    facts = place.model(settings, tmp_path, None).facts
    if pick_device().type == "cpu":
        assert "calibrated_steps" not in facts  # nothing counts there
    monkeypatch.setattr(place, "peak_of", lambda _: object())
    facts = place.model(settings, tmp_path, None).facts
    assert facts["calibrated_steps"] == 0
    key = calibration_key(
        weights_digest(model, "as-is"), pick_device(), torch.float32, facts["attention"]
    )
    keep_calibration(tmp_path, key, Calibration.of([Step(512, 512, 9, 8)]))
    assert place.model(settings, tmp_path, None).facts["calibrated_steps"] == 1
    int8 = replace(settings, weights="int8")
    assert place.model(int8, tmp_path, None).facts["calibrated_steps"] == 0


def test_a_report_for_others_names_no_program_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = FakeNvml({"GPU-aaaa": [Process("own", GIB), Process(os.getppid(), 3 * GIB)]})
    monkeypatch.setattr(machine, "probe_for", lambda _: card(library))
    name = psutil.Process(os.getppid()).name()
    for is_report, is_named in ((False, True), (True, False)):
        args = argparse.Namespace(json=True, report=is_report)
        doctor.run(args, Settings(), tmp_path, "en")
        found = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (json.dumps(name) in json.dumps(found["memory"])) is is_named
        assert found["memory"]["other_processes"] == 3 * GIB
