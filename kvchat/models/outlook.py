"""What a model and a text would take in the room that there is, or that another card would have:
what `plan` prints and the screen's calculator shows. Plain values for whoever tells them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from kvchat.device.drivers import driver_system
from kvchat.device.headroom import headroom_here, usual_headroom
from kvchat.device.memory import pick_device, probe_for
from kvchat.engine.foretold import Fits, costs_under, fitting
from kvchat.engine.limits import Limits, limits_for
from kvchat.memory.footprint import Footprint
from kvchat.memory.formats import KNOWN, FormatPair, pairs
from kvchat.memory.verdicts import Verdict, failure_of
from kvchat.models.planned import Planned, costs_of
from kvchat.planner.costs import Costs
from kvchat.planner.pairs import PairRow, pair_rows
from kvchat.settings import Settings


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that may be used: the budget if that is what binds, else the total less the headroom
    and what other programs use.
    """

    usable_bytes: int
    device: str
    total_bytes: int
    headroom_bytes: int
    budget_bytes: int | None
    others_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """`expected`: of a text of so many tokens. `fits`: of the longest one, under these limits.
    `failed`: of the pairs in `rows`, those that the model did not pass.
    """

    planned: Planned
    num_tokens: int
    room: Room
    costs: Costs
    limits: Limits
    expected: Footprint
    fits: Fits
    rows: tuple[PairRow, ...]
    layer_formats: str = ""
    failed: tuple[FormatPair, ...] = ()

    @property
    def pair(self) -> FormatPair:
        return self.limits.storing.seal

    @property
    def short_by_bytes(self) -> int:
        return max(0, self.expected.total - self.room.usable_bytes)


def look(
    planned: Planned,
    num_tokens: int,
    room: Room,
    settings: Settings,
    formats: tuple[str | None, str | None] = (None, None),
    known: Mapping[str, Verdict] = MappingProxyType({}),
    measured: Costs | None = None,
) -> Outlook:
    """`formats`: of keys and of values; None asks for every one, and the text is held as settings
    say. `known`: what the model was measured with. `measured`: what it costs where it runs.
    Raises SettingsError where the settings speak of layers that the model has not.
    """
    device = torch.device(room.device)
    limits = limits_for(replace(settings, headroom=room.headroom_bytes), device, known)
    if any(formats):
        asked = FormatPair(*(KNOWN[one or "fp"] for one in formats))
        limits = replace(limits, storing=replace(limits.storing, seal=asked))
    costs = measured or costs_of(planned, settings.layer_formats, device.type)
    costs = costs_under(costs, limits)
    chunk, wanted = limits.prefill_chunk, pairs(*formats)
    named = (FormatPair(KNOWN[key], KNOWN[value]) for key, value in wanted)
    return Outlook(
        planned,
        num_tokens,
        room,
        costs,
        limits,
        costs.footprint(num_tokens, chunk),
        fitting(costs, room.usable_bytes, limits),
        tuple(pair_rows(costs, num_tokens, chunk, room.usable_bytes, wanted)),
        settings.layer_formats,
        tuple(pair for pair in named if failure_of(pair, known) is not None),
    )


def curve(outlook: Outlook, pair: tuple[str, str], contexts: Sequence[int]) -> list[int]:
    """Bytes in all for each of these lengths, in a pair of formats."""
    costs = outlook.costs.stored_in(FormatPair(KNOWN[pair[0]], KNOWN[pair[1]]))
    return [costs.footprint(n, outlook.limits.prefill_chunk).total for n in contexts]


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
