"""What a model and a text would take in the room that there is, or that another card would have:
what `plan` prints and the screen's calculator shows. Plain values for whoever tells them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kvchat.device.drivers import driver_system
from kvchat.device.headroom import headroom_here, usual_headroom
from kvchat.device.memory import pick_device, probe_for
from kvchat.memory.footprint import Footprint, Holding, footprint_of
from kvchat.memory.formats import layer_pairs
from kvchat.memory.pairs import PairRow, pair_rows, pairs
from kvchat.models.planned import DTYPE_BYTES, Planned
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


def look(
    planned: Planned,
    num_tokens: int,
    room: Room,
    settings: Settings,
    formats: tuple[str | None, str | None] = (None, None),
) -> Outlook:
    """`formats`: of keys and of values; None asks for every one, and the text is held as computed.
    Raises SettingsError where the settings speak of layers that the model has not.
    """
    holding = Holding(
        settings.prefill_chunk,
        formats[0] or "fp",
        formats[1] or "fp",
        DTYPE_BYTES[planned.dtype],
        torch.device(room.device).type,
        settings.sink_tokens,
        layer_pairs(settings.layer_formats, len(planned.spec.layers)),
        settings.newest_tokens,
    )
    return Outlook(
        planned,
        num_tokens,
        room,
        holding,
        footprint_of(planned.spec, num_tokens, holding),
        tuple(pair_rows(planned.spec, num_tokens, room.usable_bytes, holding, pairs(*formats))),
        settings.layer_formats,
    )


def curve(outlook: Outlook, pair: tuple[str, str], contexts: Sequence[int]) -> list[int]:
    """Bytes in all for each of these lengths, in a pair of formats."""
    holding = replace(outlook.holding, key_format=pair[0], value_format=pair[1])
    spec = outlook.planned.spec
    return [footprint_of(spec, num_tokens, holding).total for num_tokens in contexts]


def room_on_card(total_bytes: int) -> Room:
    """The room on a card of that size with nothing else on it."""
    headroom = usual_headroom("cuda", total_bytes, driver_system()).num_bytes
    return Room(total_bytes - headroom, "cuda", total_bytes, headroom, None)


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
