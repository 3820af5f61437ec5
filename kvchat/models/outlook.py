"""What a plan found, and the room that there is: plain values for whoever tells them."""

from dataclasses import dataclass

from kvchat.device.headroom import headroom_here
from kvchat.device.memory import pick_device, probe_for
from kvchat.memory.footprint import Footprint, Holding
from kvchat.memory.pairs import PairRow
from kvchat.models.planned import Planned
from kvchat.settings import Settings


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that may be used: the budget if one is set, else the total less the headroom."""

    usable_bytes: int
    device: str
    total_bytes: int
    headroom_bytes: int
    budget_bytes: int | None


@dataclass(frozen=True, slots=True)
class Outlook:
    planned: Planned
    num_tokens: int
    room: Room
    holding: Holding
    expected: Footprint
    rows: tuple[PairRow, ...]
    layer_formats: str = ""

    @property
    def short_by_bytes(self) -> int:
        return max(0, self.expected.total - self.room.usable_bytes)


def room_here(settings: Settings) -> Room:
    """The room on this machine, as the engine would have it with nothing else running."""
    device = probe_for(pick_device()).read()
    headroom = settings.headroom
    if headroom is None:
        headroom = headroom_here(device).num_bytes
    usable = settings.memory_budget
    if usable is None:
        usable = max(0, device.total - headroom)
    return Room(usable, device.device, device.total, headroom, settings.memory_budget)
