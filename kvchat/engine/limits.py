"""What the person allows the engine to use, from settings and the device's size."""

import platform
from dataclasses import dataclass

import torch

from kvchat.device.memory import default_headroom, probe_for
from kvchat.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Budget and headroom in bytes, and the ladder's rungs in order."""

    budget: int | None
    headroom: int
    ladder: tuple[str, ...]


def limits_for(settings: Settings, device: torch.device) -> Limits:
    """What the person allows, with the default headroom of the device where none is set."""
    headroom = settings.headroom
    if headroom is None:
        headroom = default_headroom(probe_for(device).read().total, platform.system())
    return Limits(settings.memory_budget, headroom, settings.ladder)
