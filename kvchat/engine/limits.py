"""What the person allows the engine to use, from settings and the device's size."""

import platform
from dataclasses import dataclass

import torch

from kvchat.device.memory import default_headroom, probe_for
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import AS_COMPUTED, Storing
from kvchat.memory.formats import FormatPair
from kvchat.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Budget and headroom in bytes, the ladder's rungs in order, how texts are stored, and what of
    them is kept on disk (0: nothing).
    """

    budget: int | None
    headroom: int
    ladder: tuple[str, ...]
    storing: Storing = AS_COMPUTED
    disk_quota: int = 0
    disk_format: FormatPair = FP


def limits_for(settings: Settings, device: torch.device) -> Limits:
    """What the person allows, with the default headroom of the device where none is set."""
    headroom = settings.headroom
    if headroom is None:
        headroom = default_headroom(probe_for(device).read().total, platform.system())
    storing = Storing(
        FormatPair.parse(settings.seal_format),
        FormatPair.parse(settings.floor_format),
        settings.sink_tokens,
    )
    return Limits(
        settings.memory_budget,
        headroom,
        settings.ladder,
        storing,
        settings.disk_quota,
        FormatPair.parse(settings.disk_format),
    )
