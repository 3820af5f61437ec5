"""What was measured serves the next start, under its own key; frames say what is an estimate."""

import threading
from pathlib import Path
from typing import Any

import pytest

from kvchat.device.monitor import Monitor
from kvchat.device.peak import Peak
from kvchat.engine.engine import Engine
from kvchat.engine.open import open_engine
from kvchat.models.progress import silent
from tests.engine.test_engine import done, random_ids, request
from tests.engine.test_steps import LiveCounters
from tests.starts import resolve
from tests.tiny import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("models") / "tiny")


def opened(folder: Path, data_dir: Path, **flags: Any) -> Engine:
    settings = resolve(flags={"model": str(folder), "headroom": 0, "memory_budget": "1GiB"} | flags)
    return open_engine(settings, data_dir, silent, None)


def asked(engine: Engine) -> None:
    done(list(engine.run(request(random_ids(200), prefill_chunk=64))))
    while engine.save():
        pass


def measuring(monkeypatch: pytest.MonkeyPatch, peak: Peak | None) -> None:
    monkeypatch.setattr("kvchat.engine.engine.peak_of", lambda _: peak)


def test_it_is_known_after_a_restart_of_that_model_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, LiveCounters())
    engine = opened(folder, tmp_path)
    before = engine.costs.activations(64, 192)
    asked(engine)
    engine.close()
    assert engine.costs.calibration.knows(64, 192)
    assert engine.costs.activations(64, 192) < before

    again = opened(folder, tmp_path)
    assert again.costs.calibration == engine.costs.calibration
    again.close()
    for flags in ({"dtype": "bf16"}, {"weights": "int8"}):
        other = opened(folder, tmp_path, **flags)
        assert other.costs.calibration.steps == ()
        other.close()


def test_a_frame_says_what_is_an_estimate(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, None)
    engine = opened(folder, tmp_path)
    asked(engine)
    assert "activations_bytes" in engine.frame()["estimated"]
    engine.close()
    measuring(monkeypatch, LiveCounters())
    engine = opened(folder, tmp_path)
    assert "activations_bytes" in engine.frame()["estimated"]
    asked(engine)
    assert "activations_bytes" not in engine.frame()["estimated"]
    assert engine.frame()["activations_bytes"] <= engine.costs.activations(1, 224)
    engine.close()


def test_a_calibration_that_cannot_be_kept_is_kept_once_it_can(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, LiveCounters())
    engine = opened(folder, tmp_path)
    file = tmp_path / "calibration.json"
    file.mkdir()  # it cannot be replaced
    done(list(engine.run(request(random_ids(200), prefill_chunk=64))))
    with pytest.raises(OSError, match="calibration"):
        engine.save()
    file.rmdir()
    done(list(engine.run(request(random_ids(300, 7), prefill_chunk=128))))
    engine.save()
    assert file.is_file()
    engine.close()


def test_the_device_is_watched_as_long_as_the_engine_is_open(folder: Path, tmp_path: Path) -> None:
    engine = opened(folder, tmp_path)
    monitor = engine.room.probe
    assert isinstance(monitor, Monitor)
    watching = [one for one in threading.enumerate() if one is monitor._thread]
    assert len(watching) == 1
    engine.close()
    watching[0].join(5)
    assert not watching[0].is_alive()
