"""What steps of a model took on a device, kept from one start to the next.

One JSON file in the data folder. What is in it can be measured again at any time: a file that is
damaged, or another program's, counts as none and is replaced. Knows no engine and no measuring.
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from kvchat import __version__
from kvchat.device.memory import device_name
from kvchat.files import read_keys, replace_file
from kvchat.memory.calibrate import UNCALIBRATED, Calibration, Step

_NAME = "calibration.json"
_VERSION = 1
_MOST_KEYS = 32  # those that were used last; each takes a few KiB
_LARGEST = 2**50  # bytes and tokens alike; more is no figure of ours


def calibration_key(
    model: bytes, device: torch.device, dtype: torch.dtype, attention: Iterable[Mapping[str, Any]]
) -> str:
    """What a measurement holds for. `model`: a digest of its weights, as they were loaded;
    `attention`: rows as `choose.describe` gives them; of kvchat too, whose estimates are kept with
    what was measured.
    """
    backends = {str(row[part]) for row in attention for part in ("decode", "prefill")}
    parts = (
        model.hex(),
        device_name(device),
        f"torch {torch.__version__}",
        str(dtype).removeprefix("torch."),
        " ".join(sorted(backends)),
        f"kvchat {__version__}",
    )
    return " · ".join(parts)


class KeptCalibration:
    """What is known of one model on one device, in its file; written only where it changed."""

    def __init__(self, data_dir: Path, key: str) -> None:
        self._data_dir, self._key = data_dir, key
        self._kept: tuple[Step, ...] = ()

    def read(self) -> Calibration:
        found = read_calibration(self._data_dir, self._key)
        self._kept = found.steps
        return found

    def keep(self, calibration: Calibration) -> None:
        """Raises OSError where it cannot be written; it is tried again once more is known."""
        if calibration.steps is not self._kept and calibration.steps != self._kept:
            self._kept = calibration.steps
            keep_calibration(self._data_dir, self._key, calibration)


def read_calibration(data_dir: Path, key: str) -> Calibration:
    """What is known for a key; uncalibrated where that is nothing, or makes no sense."""
    try:
        rows = read_keys(data_dir / _NAME, _VERSION)[key]["steps"]
        return Calibration.of(_step(row) for row in rows)
    except (KeyError, TypeError, ValueError):
        return UNCALIBRATED


def keep_calibration(data_dir: Path, key: str, calibration: Calibration) -> None:
    """Puts it in the place of what was known for that key. Raises OSError, and leaves what was."""
    found = dict(read_keys(data_dir / _NAME, _VERSION))
    found.pop(key, None)
    found[key] = {"at_s": time.time(), "steps": [_row(step) for step in calibration.steps]}
    kept = dict(list(found.items())[-_MOST_KEYS:])
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(data_dir / _NAME, json.dumps({"version": _VERSION, "keys": kept}))


def _row(step: Step) -> list[int]:
    return [step.chunk_tokens, step.context_tokens, step.estimated_bytes, step.measured_bytes]


def _step(row: Any) -> Step:
    """Raises TypeError or ValueError for what cannot have been measured."""
    step = Step(*row)
    for figure in _row(step):
        if isinstance(figure, bool) or not isinstance(figure, int) or not 1 <= figure <= _LARGEST:
            raise ValueError(figure)
    return step
