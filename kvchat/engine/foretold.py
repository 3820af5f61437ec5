"""How long a text fits, told once for everybody: the frame, the chat's decisions, what a change of
settings or another model would mean, `plan`.

    tokens           stored as settings say, read in the usual chunks, nothing done about old text
    in_steps_tokens  the same, read in the smallest chunks that the ladder allows
    most_tokens      with all that the ladder does before a turn is left out

Arithmetic on values that were measured (`Costs`, `Snapshot`); any thread may ask.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from kvchat.attention.choose import reads_in_place
from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import FP
from kvchat.memory.footprint import Footprint
from kvchat.memory.formats import FormatPair, lower_of
from kvchat.planner.costs import Costs, Relief
from kvchat.planner.plan import Snapshot

Binding = Literal["budget", "memory", "length"]


@dataclass(frozen=True, slots=True)
class Fits:
    """See the module's text. `sealed`: what text is stored in at first; `pair`: what older text
    comes to be stored in, None where that is no less; `to_host`, `in_steps`: whether it may be
    moved to the computer's memory, and whether chunks get smaller.
    """

    tokens: int
    in_steps_tokens: int
    most_tokens: int
    sealed: FormatPair
    pair: FormatPair | None
    to_host: bool
    in_steps: bool

    def row(self) -> dict[str, Any]:
        """`stored`: None where text is stored as computed. `helps`: what makes it the most."""
        helps = (("offload", self.to_host), ("shrink_chunk", self.in_steps))
        return {
            "tokens": self.tokens,
            "most_tokens": self.most_tokens,
            "stored": None if self.sealed == FP else str(self.sealed),
            "pair": None if self.pair is None else str(self.pair),
            "helps": [name for name, is_done in helps if is_done],
        }


def fitting(costs: Costs, allowed_bytes: int, limits: Limits) -> Fits:
    """`costs`: under these limits, see `costs_under`."""
    chunk, relief = costs.when_short(limits.prefill_chunk, limits.ladder, limits.host_quota)
    usual = costs.largest_tokens(allowed_bytes, limits.prefill_chunk)
    is_smaller, helped = chunk < limits.prefill_chunk, relief != Relief()
    in_steps = costs.largest_tokens(allowed_bytes, chunk) if is_smaller else usual
    most = costs.largest_tokens(allowed_bytes, chunk, relief) if helped else in_steps
    sealed = costs.storing.seal
    pair = None if relief.pair is None else lower_of(sealed, relief.pair)
    return Fits(
        usual,
        in_steps,
        most,
        sealed,
        None if pair == sealed else pair,
        relief.host_bytes > 0,
        is_smaller,
    )


def costs_under(costs: Costs, limits: Limits, device: torch.device) -> Costs:
    """What texts would cost under these limits."""
    stored = (limits.storing.seal, *limits.lower)
    in_place = reads_in_place(costs.geometries, device, stored)
    return replace(
        costs,
        storing=limits.storing,
        lower=limits.lower,
        device_type="triton" if in_place else device.type,
        weighs=limits.weighs,
    )


@dataclass(frozen=True, slots=True)
class Foretold:
    """`fits` is for `allowed_bytes`, and `binding` is what keeps it from being more;
    `token_bytes` are those of one more token as it is stored at first, `least_token_bytes` once
    memory is short. `footprint`: of the longest text. `short_by_bytes`: what lacks for a first
    token.
    """

    fits: Fits
    allowed_bytes: int
    binding: Binding
    token_bytes: float
    least_token_bytes: float
    footprint: Footprint
    short_by_bytes: int = 0

    @property
    def tokens(self) -> int:
        return self.fits.most_tokens


def foretell(costs: Costs, snapshot: Snapshot, limits: Limits) -> Foretold:
    """`costs`: under these limits. `snapshot`: as measured, whatever the limits were then."""
    allowed = replace(snapshot, budget=limits.budget, headroom=limits.headroom).told_bytes
    found = fitting(costs, allowed, limits)
    chunk, relief = costs.when_short(limits.prefill_chunk, limits.ladder, limits.host_quota)
    tokens = found.most_tokens
    binding: Binding = "memory"
    if tokens >= costs.spec.max_positions:
        binding = "length"
    elif limits.budget is not None and allowed >= limits.budget:
        binding = "budget"
    return Foretold(
        found,
        allowed,
        binding,
        costs.token_bytes(),
        costs.token_bytes(relief.pair),
        costs.relieved(tokens, chunk, relief),
        0 if tokens else max(0, costs.relieved(1, chunk, relief).total - allowed),
    )
