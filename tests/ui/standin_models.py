"""Settings and models of the stand-in: real layers of settings, and the arithmetic of a model of
the catalog on an imagined card; nothing is loaded.
"""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kvchat.chat.held_settings import HeldSettings
from kvchat.device.memory import DeviceMemory
from kvchat.engine.foretold import Foretold, foretell
from kvchat.engine.limits import limits_for
from kvchat.kvcache.blocks import geometries
from kvchat.memory.verdicts import Verdict
from kvchat.models.catalog import catalog
from kvchat.models.fitting import spec_of_entry
from kvchat.models.offered import Offered, Way, offered, ways
from kvchat.models.outlook import Room, room_here
from kvchat.planner.costs import Costs
from kvchat.planner.plan import Snapshot
from kvchat.settings import Settings
from tests.tiny import tiny_tokenizer

GIB, MODEL = 2**30, "Qwen3-8B"
CUDA = torch.device("cuda")


class StandInHeld(HeldSettings):
    def __init__(self, talks: Any) -> None:
        folder = Path(tempfile.mkdtemp(prefix="kvchat-standin-"))
        super().__init__(Settings(), None, folder, lambda: None)
        self._talks = talks
        spec = spec_of_entry(catalog()[MODEL], 2, "int8")
        self._costs = Costs(spec, geometries(spec, torch.bfloat16), 2, spec.weight_bytes)

    def verdicts(self) -> dict[str, Verdict]:
        found: dict[str, Verdict] = self._talks.verdicts()
        return found

    def refuse_failed(self, settings: Settings, names: Collection[str]) -> None:
        pass

    def foretell(self, settings: Settings) -> Foretold:
        limits = limits_for(settings, torch.device("cpu"), self.verdicts())
        if settings.headroom is None:
            limits = limits.__class__(**{**_fields(limits), "headroom": GIB // 2})
        costs = Costs(**{**_fields(self._costs), "storing": limits.storing, "lower": limits.lower})
        device = DeviceMemory("cuda:0", 12 * GIB, 11 * GIB - costs.weight_bytes, 0, 0, GIB, 0.0)
        now = Snapshot(device, None, 0, costs.weight_bytes, 0, 0)
        return foretell(costs, now, limits)


def _fields(one: Any) -> Mapping[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


class StandInLoading:
    """`asked`: what was asked of it, in order."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = self.models_folder = data_dir
        self.asked: list[Any] = []
        self.dtype = "bf16"
        loaded = SimpleNamespace(tokenizer=tiny_tokenizer(), name=MODEL)
        self.engine = SimpleNamespace(loaded=loaded, proving=None)

    def capacities(self) -> dict[str, int]:
        return {"device": 12 * GIB, "host": 32 * GIB}

    def room(self, settings: Settings) -> Room:
        return room_here(settings)

    def measured_costs(self, ref: str) -> dict[tuple[str, str], Costs]:
        return {}

    def offered(self) -> list[Offered]:
        return offered(self.data_dir, (), str(self.data_dir / "none"))

    def ways(self, ref: str, *, first: bool = False) -> list[Way]:
        found = list(ways(ref, Settings(), self.data_dir, 11 * GIB, CUDA))
        return found[:1] if first and found[0].fits else found

    def why_not(self, ref: str) -> None:
        return None

    def change(self, changes: Mapping[str, object]) -> None:
        self.asked.append(dict(changes))

    def reload(self) -> None:
        self.asked.append("reload")

    def unload(self) -> None:
        self.asked.append("unload")

    def cancel(self) -> None:
        self.asked.append("cancel")
