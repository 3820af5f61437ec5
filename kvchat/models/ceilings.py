"""What devices were measured to read and compute a second, kept from one start to the next.

One JSON file in the data folder. What is in it can be measured again at any time: a file that is
damaged counts as none and is replaced. Knows no engine and no measuring.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvchat.device.ceilings import Ceilings
from kvchat.device.memory import device_name
from kvchat.files import read_keys, replace_file

_NAME = "ceilings.json"
_VERSION = 1
_MOST_KEYS = 32


@dataclass(frozen=True, slots=True)
class KeptCeilings:
    """`device`, `dtype`, `threads`: what they hold for; `at_s`: when they were measured."""

    ceilings: Ceilings
    device: str
    dtype: str
    threads: int
    at_s: float

    def row(self) -> dict[str, Any]:
        return {
            "bytes_per_s": self.ceilings.bytes_per_s,
            "flops_per_s": self.ceilings.flops_per_s,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "at_s": self.at_s,
        }


@dataclass(frozen=True, slots=True)
class CeilingsKey:
    """What a measurement holds for: a device, a dtype that is computed in, and, on a CPU, how many
    threads do it.
    """

    device: str
    dtype: str
    threads: int

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, threads: int) -> "CeilingsKey":
        name, counted = device_name(device), threads if device.type == "cpu" else 0
        return cls(name, str(dtype).removeprefix("torch."), counted)

    def __str__(self) -> str:
        return f"{self.device} · {self.dtype} · {self.threads} · torch {torch.__version__}"


def read_ceilings(data_dir: Path, key: CeilingsKey) -> KeptCeilings | None:
    """None where nothing is known for a key, or what is there makes no sense."""
    try:
        row = read_keys(data_dir / _NAME, _VERSION)[str(key)]
        found = Ceilings(float(row["bytes_per_s"]), float(row["flops_per_s"]))
        at_s = float(row["at_s"])
    except (KeyError, TypeError, ValueError):
        return None
    sound = all(math.isfinite(n) and n > 0 for n in (found.bytes_per_s, found.flops_per_s, at_s))
    return KeptCeilings(found, key.device, key.dtype, key.threads, at_s) if sound else None


def keep_ceilings(data_dir: Path, key: CeilingsKey, found: Ceilings) -> KeptCeilings:
    """In the place of what was known for that key. Raises OSError, and leaves what was."""
    kept = KeptCeilings(found, key.device, key.dtype, key.threads, time.time())
    rows = dict(read_keys(data_dir / _NAME, _VERSION))
    rows.pop(str(key), None)
    rows[str(key)] = kept.row()
    newest = dict(list(rows.items())[-_MOST_KEYS:])
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(data_dir / _NAME, json.dumps({"version": _VERSION, "keys": newest}))
    return kept
