"""How long a text fits, told once for everybody: the frame, the chat's decisions, what a change of
settings or another model would mean, `plan`.

    tokens           stored as settings say, read in the usual chunks, nothing done about old text
    in_steps_tokens  the same, read in the smallest chunks that the ladder allows
    most_tokens      with all that the ladder does before a turn is left out

Arithmetic on values that were measured (`Costs`, `Snapshot`); any thread may ask.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import FP
from kvchat.memory.footprint import Footprint
from kvchat.memory.formats import FormatPair, lower_of
from kvchat.planner.costs import Costs, Relief
from kvchat.planner.plan import Snapshot

Binding = Literal["budget", "memory", "length"]


@dataclass(frozen=True, slots=True)
class Fits:
    """See the module's text. `sealed`: what text is stored in at first. What makes it the most:
    `pair`, that older text comes to be stored in; `to_host`, that it moves to the computer's
    memory; smaller chunks; each only where it is of help.
    """

    tokens: int
    in_steps_tokens: int
    most_tokens: int
    sealed: FormatPair
    pair: FormatPair | None
    to_host: bool

    def row(self) -> dict[str, Any]:
        """`stored`: None where text is stored as computed."""
        in_steps = self.in_steps_tokens > self.tokens
        helps = (("offload", self.to_host), ("shrink_chunk", in_steps))
        return {
            "tokens": self.tokens,
            "in_steps_tokens": self.in_steps_tokens,
            "most_tokens": self.most_tokens,
            "stored": None if self.sealed == FP else str(self.sealed),
            "pair": None if self.pair is None else str(self.pair),
            "helps": [name for name, is_done in helps if is_done],
        }


def fitting(costs: Costs, allowed_bytes: int, limits: Limits) -> Fits:
    """`costs`: under these limits, see `costs_under`."""
    chunk, relief = costs.when_short(limits.prefill_chunk, limits.ladder, limits.host_quota)

    def most(chunk_tokens: int, pair: FormatPair | None = None, host_bytes: int = 0) -> int:
        return costs.largest_tokens(allowed_bytes, chunk_tokens, Relief(pair, host_bytes))

    usual = most(limits.prefill_chunk)
    in_steps = most(chunk) if chunk < limits.prefill_chunk else usual
    in_less = most(chunk, relief.pair) if relief.pair is not None else in_steps
    in_all = most(chunk, relief.pair, relief.host_bytes) if relief.host_bytes else in_less
    sealed, pair = costs.storing.seal, relief.pair if in_less > in_steps else None
    lower = None if pair is None else lower_of(sealed, pair)
    return Fits(usual, in_steps, in_all, sealed, lower, in_all > in_less)


def costs_under(costs: Costs, limits: Limits) -> Costs:
    """What texts would cost under these limits."""
    return replace(costs, storing=limits.storing, lower=limits.lower, weighs=limits.weighs)


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
