"""What the person allows the engine to use, from settings and the device's size."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from kvchat.device.headroom import headroom_of
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import AS_COMPUTED, Storing
from kvchat.memory.formats import FormatPair, better_of, lower_of
from kvchat.memory.verdicts import Verdict, allowed_pairs, failure_of
from kvchat.settings import Settings
from kvchat.units import GIB

USUAL_HOST_BYTES = 4 * GIB
USUAL_THREADS = torch.get_num_threads()  # torch's own choice, before any setting


@dataclass(frozen=True, slots=True)
class Limits:
    """Budget and headroom in bytes, the ladder's rungs in order, how texts are stored, and what of
    them is kept on disk and on the host (0: nothing). `lower`: the pairs that old text may be
    stored in when memory is short, the most exact first. `threads`: what a CPU computes with; None
    leaves torch as it is. `evict_by`: see `kvchat.policy`. `prefill_chunk`: of texts to come.
    """

    budget: int | None
    headroom: int
    ladder: tuple[str, ...]
    storing: Storing = AS_COMPUTED
    disk_quota: int = 0
    disk_format: FormatPair = FP
    lower: tuple[FormatPair, ...] = ()
    host_quota: int = 0
    keep_originals: bool = False
    threads: int | None = None
    evict_by: str = "window"
    prefill_chunk: int = 512

    @property
    def pairs(self) -> frozenset[FormatPair]:
        """What a text may come to be stored in."""
        return frozenset((self.storing.seal, self.storing.floor, self.disk_format, *self.lower))

    @property
    def weighs(self) -> bool:
        """Whether it matters what attention blocks get."""
        return "evict" in self.ladder and self.evict_by == "heavy_hitter"


def limits_for(
    settings: Settings, device: torch.device, known: Mapping[str, Verdict] = MappingProxyType({})
) -> Limits:
    """What the person allows, with the default headroom of the device where none is set; `known`:
    what the model was measured with, by pair of formats. In a pair that failed nothing is stored,
    unless that is allowed: as computed instead.
    """
    headroom = settings.headroom
    if headroom is None:
        headroom = headroom_of(device).num_bytes
    unproven, wanted = settings.allow_unproven, FormatPair.parse(settings.floor_format)
    against = {} if unproven else known
    lower = allowed_pairs(known, wanted, unproven=unproven)
    seal = _unless_failed(settings.seal_format, against)
    floor = wanted if failure_of(wanted, against) is None else (FP, *lower)[-1]
    # What is sealed so is reused so: else each turn would read the whole chat again.
    storing = Storing(seal, lower_of(seal, floor), settings.sink_tokens, settings.newest_tokens)
    return Limits(
        settings.memory_budget,
        headroom,
        settings.ladder,
        storing,
        settings.disk_quota,
        # What is stored in less would never be read back.
        better_of(_unless_failed(settings.disk_format, against), storing.floor),
        lower,
        _host_quota(settings, device),
        settings.keep_originals,
        settings.threads or USUAL_THREADS,
        settings.evict_by,
        settings.prefill_chunk,
    )


def _unless_failed(text: str, known: Mapping[str, Verdict]) -> FormatPair:
    pair = FormatPair.parse(text)
    return pair if failure_of(pair, known) is None else FP


def _host_quota(settings: Settings, device: torch.device) -> int:
    """On a CPU both tiers are one memory: there the host is one only beside a budget, and only
    where it was asked for.
    """
    if device.type == "cpu":
        return (settings.host_quota or 0) if settings.memory_budget is not None else 0
    return USUAL_HOST_BYTES if settings.host_quota is None else settings.host_quota
