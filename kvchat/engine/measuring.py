"""What is measured for the text that is open: the device, what is held of it, what steps take and
how quick they are; and what that leaves room for.

Decides nothing. Belongs to the thread that runs the engine; only `last_snapshot` may be read by
any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import torch

from kvchat.attention.choose import reads_in_place
from kvchat.device.copying import host_to_device_per_s
from kvchat.device.drivers import driver_system
from kvchat.device.guarded import GuardedProbe
from kvchat.device.headroom import may_spill
from kvchat.device.memory import DeviceMemory, Probe
from kvchat.device.oom import is_out_of_memory
from kvchat.device.spill import Pace
from kvchat.engine.events import Took
from kvchat.engine.foretold import Fits, costs_under, fitting
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel, Text
from kvchat.errors import OutOfMemory
from kvchat.kvcache.pool import Pool
from kvchat.memory.calibrate import Calibration
from kvchat.models.fitting import LEAST_TEXT
from kvchat.planner.costs import Costs
from kvchat.planner.ledger import entry
from kvchat.planner.plan import LEAST_CHUNK, Snapshot

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel

# How long it counts that memory ran out with less taken than should have been there: others may
# give theirs back.
FOUND_S = 60.0


class Measuring:
    """`text`: what is open, None where nothing is."""

    def __init__(
        self, loaded: LoadedModel, probe: Probe, limits: Limits, pool: Pool, local: LocalModel
    ) -> None:
        self.probe = probe if isinstance(probe, GuardedProbe) else GuardedProbe(probe)
        self._own_bytes_read = 0
        self._may_spill = may_spill(loaded.device.type, driver_system())
        self._pace = Pace()
        self._found: tuple[int, float] | None = None
        self._pool, self._local = pool, local
        self._host_bytes_per_s = _host_bytes_per_s(pool.device)
        self.text: Text | None = None
        self.costs = Costs(
            loaded.spec,
            pool.geometries,
            loaded.dtype.itemsize,
            loaded.weight_bytes,
            loaded.device.type,
        )
        self._limits, self._allows_less = limits, False
        self.limits = limits
        self._activations: tuple[Costs | None, tuple[int, int], int] = (None, (0, 0), 0)
        self._fits: tuple[object, Fits] | None = None
        self.latest = self.snapshot()

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """From the next text on: what is stored stays as it is. Whether they allow less than those
        before is known until room was made for it.
        """
        before, self._limits = self._limits, limits
        less_budget = (limits.budget or inf) < (before.budget or inf)
        self._allows_less |= less_budget or limits.headroom > before.headroom
        self._pool.storing = limits.storing
        self._pool.host_limit_bytes = limits.host_quota
        self._pool.keep_originals = limits.keep_originals
        self.costs = self.costs_under(limits)

    def costs_under(self, limits: Limits) -> Costs:
        """What texts would cost under other limits; any thread may ask."""
        pool, stored = self._pool, (limits.storing.seal, *limits.lower)
        in_place = reads_in_place(pool.geometries, pool.device, stored)
        kind = "triton" if in_place else pool.device.type
        return replace(costs_under(self.costs, limits), device_type=kind)

    def learned(self, calibration: Calibration) -> None:
        """What steps took so far: for all plans from now on."""
        self.costs = replace(self.costs, calibration=calibration)

    def snapshot(self) -> Snapshot:
        """What is in memory now. Reads the probe."""
        self.latest = self._measured(self._idle_bytes(), self._host_free_bytes())
        return self.latest

    def glance(self) -> Snapshot:
        """The same at the edges of blocks, in microseconds: what is idle is not counted anew, for
        that takes the longer the more is kept.
        """
        before = self.latest
        self.latest = self._measured(before.idle_bytes, before.host_free_bytes)
        return self.latest

    def _measured(self, idle_bytes: int, host_free_bytes: int) -> Snapshot:
        library = self.text.library.nbytes if self.text is not None else self._local.kept_bytes
        held_bytes, weight_bytes = self._pool.device_bytes, self.costs.weight_bytes
        device = self._device(weight_bytes + held_bytes + library)
        return Snapshot(
            device,
            self.limits.budget,
            self.limits.headroom,
            weight_bytes,
            held_bytes,
            idle_bytes,
            library,
            host_free_bytes,
            self._host_bytes_per_s,
            self._found_bytes(device.at_s),
        )

    def _idle_bytes(self) -> int:
        return self._pool.idle_bytes + self._local.kept_bytes

    def count_idle(self) -> Snapshot:
        """The newest measurement with what is idle by now, which is there to be given up."""
        idle_bytes, host_free_bytes = self._idle_bytes(), self._host_free_bytes()
        self.latest = replace(self.latest, idle_bytes=idle_bytes, host_free_bytes=host_free_bytes)
        return self.latest

    def activations(self, chunk_tokens: int, num_tokens: int) -> int:
        """As `Costs` says; asked at each block of a reply with the same figures."""
        asked = (chunk_tokens, num_tokens)
        if self._activations[0] is not self.costs or self._activations[1] != asked:
            self._activations = (self.costs, asked, self.costs.activations(*asked))
        return self._activations[2]

    def _found_bytes(self, now_s: float) -> int | None:
        if self._found is not None and now_s - self._found[1] > FOUND_S:
            self._found = None
        return None if self._found is None else self._found[0]

    def _device(self, own_bytes: int) -> DeviceMemory:
        """As it is read; where it does not answer, what it last said, less what we took since."""
        device = self.probe.read()
        if not device.age_s:
            self._own_bytes_read = own_bytes
        taken = max(0, own_bytes - self._own_bytes_read)
        return replace(device, free=max(0, device.free - taken)) if taken else device

    def paced(self, step_s: float) -> Iterator[Took]:
        """After a decode step of so many seconds: says so where the driver seems to have moved
        memory to the computer's.
        """
        if not self._may_spill:
            return
        now, before = self.latest, self._pace
        self._pace = before.after(step_s, now.own_bytes, now.device.free, now.headroom)
        if self._pace.is_spilling and not before.is_spilling:
            times = {"times": f"{self._pace.times_slower:.0f}"}
            yield Took(entry("spill", times, "driver_spills", 0, None))

    def _host_free_bytes(self) -> int:
        """What idle copies there would leave counts."""
        pool = self._pool
        if not pool.host_bytes:
            return pool.host_limit_bytes
        idle = sum(block.nbytes for block in pool.idle("host"))
        return max(0, pool.host_limit_bytes - pool.host_bytes + pool.on_host.free_bytes + idle)

    @property
    def last_snapshot(self) -> Snapshot:
        """The newest measurement under the limits of this moment."""
        return replace(self.latest, budget=self.limits.budget, headroom=self.limits.headroom)

    def fits(self) -> Fits:
        """How long a text fits now, in all; any thread may ask."""
        costs, limits = self.costs, self.limits
        asked = (self.last_snapshot.told_bytes, costs, limits)
        known = self._fits
        if known is None or known[0] != asked:
            known = self._fits = asked, fitting(costs, asked[0], limits)
        return known[1]

    def out_of_memory(self, needed_bytes: int) -> OutOfMemory:
        """Every rung is spent: the next prompt is planned, for a while, for less than there seemed
        to be. That is what lacked, or, where no limit of ours was short, what is held by now.
        """
        now = self.snapshot()
        least = self.costs.needed_bytes(LEAST_TEXT, LEAST_CHUNK)
        # By a block at least: what is planned for a few bytes less is the same prompt again.
        block = sum(one.block_bytes for one in self._pool.geometries)
        short = max(needed_bytes, block)
        there = now.allowed_bytes - short if needed_bytes else now.own_bytes
        self._found = max(least, there), now.device.at_s
        now = self.snapshot()
        return OutOfMemory(
            "out_of_memory",
            needed=needed_bytes,
            used=now.own_bytes,
            allowed=now.allowed_bytes,
            footprint=self.costs.footprint(self.text.num_cached if self.text else 0, LEAST_CHUNK),
            snapshot=now,
        )


def _host_bytes_per_s(device: torch.device) -> float | None:
    """Measured while there is room; a device that is full already is taken to be no slower."""
    try:
        return host_to_device_per_s(device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
