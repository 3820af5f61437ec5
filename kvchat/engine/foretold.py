"""What limits would mean, before they hold: how much fits, what binds it, what a token takes.

    tokens = Costs.largest_tokens(allowed, *Costs.when_short(chunk, ladder, host))

which is how the frame's `capacity_tokens` comes about (engine/measuring.py), so that what is
foretold is what is shown once it holds. Arithmetic on values that were measured; any thread may
ask.
"""

from dataclasses import dataclass, replace
from typing import Literal

from kvchat.engine.limits import Limits
from kvchat.memory.footprint import Footprint
from kvchat.planner.costs import Costs
from kvchat.planner.plan import Snapshot

Binding = Literal["budget", "memory", "length"]


@dataclass(frozen=True, slots=True)
class Foretold:
    """`tokens` fit into `allowed_bytes`, and `binding` is what keeps it from being more;
    `token_bytes` are those of one more token as it is stored at first, `least_token_bytes` once
    memory is short. `footprint`: of such a text. `short_by_bytes`: what lacks for a first token.
    """

    tokens: int
    allowed_bytes: int
    binding: Binding
    token_bytes: float
    least_token_bytes: float
    footprint: Footprint
    short_by_bytes: int = 0


def foretell(costs: Costs, snapshot: Snapshot, limits: Limits) -> Foretold:
    """`costs`: under these limits. `snapshot`: as measured, whatever the limits were then."""
    now = replace(snapshot, budget=limits.budget, headroom=limits.headroom)
    allowed = now.allowed_bytes
    chunk, relief = costs.when_short(limits.prefill_chunk, limits.ladder, limits.host_quota)
    tokens = costs.largest_tokens(allowed, chunk, relief)
    binding: Binding = "memory"
    if tokens >= costs.spec.max_positions:
        binding = "length"
    elif limits.budget is not None and allowed >= limits.budget:
        binding = "budget"
    return Foretold(
        tokens,
        allowed,
        binding,
        costs.token_bytes(),
        costs.token_bytes(relief.pair),
        costs.relieved(tokens, chunk, relief),
        0 if tokens else max(0, costs.relieved(1, chunk, relief).total - allowed),
    )
