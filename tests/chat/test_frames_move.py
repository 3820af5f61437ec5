"""The figures of the device while a step computes for long, and before a model is there."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvchat.chat import frames
from kvchat.chat.frames import Frames
from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory, Program
from kvchat.kvcache.frame import on_device
from kvchat.units import GIB
from tests.device.liars import LIES, Liar

NOW = DeviceMemory("cuda:0", 8 * GIB, 5 * GIB, 2 * GIB, GIB, GIB, 100.0)


def worker(stage: str, newest: DeviceMemory | None) -> Any:
    frame = {
        "device": {"budget": None, "headroom": 0},
        "weights_bytes": GIB,
        "library_bytes": 0,
        "activations_bytes": 0,
        "estimated": [],
        "kv": {"device_bytes": 0},
        "spans": [],
        "turns": [],
        "chat": "",
        "chats": {},
    }
    engine = SimpleNamespace(newest_reading=newest)
    return SimpleNamespace(
        frame=on_device(frame, NOW), engine=engine, stage=stage, progress=None, load_began_s=0.0
    )


def frames_of(worker: Any) -> Frames:
    """Without a chat the store is not asked."""
    nothing: Any = None
    gauges: Any = SimpleNamespace(hangul_per_token=None, letters_per_token=None)
    return Frames(nothing, worker, nothing, gauges, lambda _: (), lambda: 2 * GIB)


def shown(stage: str, newest: DeviceMemory | None) -> dict[str, Any]:
    return frames_of(worker(stage, newest)).frame(None)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_what_was_sampled_since_is_shown_while_a_step_computes(stage: str) -> None:
    game = (Program(7, "game", 3 * GIB),)
    later = replace(NOW, free=2 * GIB, other_processes=4 * GIB, at_s=101.0, programs=game)
    frame = shown(stage, later)
    assert (frame["at_s"], frame["device"]["free"]) == (101.0, 2 * GIB)
    assert frame["device"]["programs"][0]["name"] == "game"
    parts = ("weights_bytes", "library_bytes", "activations_bytes", "runtime_bytes")
    held = sum(frame[part] for part in parts) + frame["kv"]["device_bytes"]
    assert held + frame["device"]["free"] + frame["device"]["other_processes"] == 8 * GIB


@pytest.mark.parametrize(
    ("stage", "newest"),
    [
        ("ready", replace(NOW, free=0, at_s=101.0)),
        ("prefill", replace(NOW, free=0, at_s=99.0)),
        ("prefill", None),
    ],
    ids=["idle", "older", "not watched"],
)
def test_else_the_frame_is_the_workers(stage: str, newest: DeviceMemory | None) -> None:
    assert shown(stage, newest)["device"]["free"] == 5 * GIB


def test_before_loading_a_device_that_cannot_be_read_is_shown_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    liar = Liar(NOW)
    monkeypatch.setattr(frames, "_probe", lambda: GuardedProbe(liar))
    before = SimpleNamespace(
        frame=None, engine=None, stage="loading", progress=None, load_began_s=0.0
    )
    made = frames_of(before)
    assert made.frame(None)["device"]["total"] == 8 * GIB
    assert made.frame(None)["device"]["budget"] == 2 * GIB
    liar.lie = LIES["raises"]
    assert made.frame(None)["device"]["total"] == 0
