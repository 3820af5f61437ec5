"""What a model was measured with in a pair of formats, and which pairs may so be used with it.

Arithmetic on values: who measures, and where it is kept, is others' (bench/, models/verdicts.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvchat.memory.formats import FormatPair

# The bounds within which a format is offered. Between a little more than what K4/V4 with its hot
# window costs the smallest model (DESIGN.md §12), and less than what the library's int4 cache does.
MOST_KL = 0.02
LEAST_SAME_PERCENT = 94.0

# The pairs that a planner steps down to, the most exact first.
STEPS = tuple(map(FormatPair.parse, ("int8/int8", "int6/int4", "int4/int4")))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model read one text twice: as computed, and with blocks in `pair`.

    kl: mean divergence of the next token's distribution, in nats; same_percent: how often the
    likeliest token is the same; perplexity_percent: the change of perplexity; num_scored: tokens
    that these are means over.
    """

    pair: str
    kl: float
    same_percent: float
    perplexity_percent: float
    num_scored: int
    text: str
    measured_at_s: float

    @property
    def passed(self) -> bool:
        return self.kl <= MOST_KL and self.same_percent >= LEAST_SAME_PERCENT


def failure_of(pair: FormatPair, verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """What speaks against a pair: its own verdict if there is one, else that of a pair at least as
    exact which did not pass. None where it passed, and where nothing is known of it.

    `verdicts`: by pair, as `int6/int4`.
    """
    own = verdicts.get(str(pair))
    if own is not None:
        return None if own.passed else own
    failed = (one for one in verdicts.values() if not one.passed)
    return next((one for one in failed if FormatPair.parse(one.pair).at_least(pair)), None)


def judgement_of(pair: FormatPair, verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """What decides whether a pair may be used: what speaks against it, its own verdict, or that of
    a pair no more exact which passed. None where nothing is known of it.
    """
    decided = failure_of(pair, verdicts) or verdicts.get(str(pair))
    if decided is not None:
        return decided
    passed = (one for one in verdicts.values() if one.passed)
    less = (one for one in passed if pair.at_least(FormatPair.parse(one.pair)))
    return min(less, key=lambda one: one.kl, default=None)


def unjudged_steps(verdicts: Mapping[str, Verdict]) -> tuple[FormatPair, ...]:
    """The pairs that a planner would step down to, but nothing is known of."""
    return tuple(pair for pair in STEPS if judgement_of(pair, verdicts) is None)


def allowed_pairs(
    verdicts: Mapping[str, Verdict], floor: FormatPair, *, unproven: bool = False
) -> tuple[FormatPair, ...]:
    """The pairs that a text may be stored in when memory is short, the most exact first: not below
    the floor, and only what this model passed. `unproven`: those too that it did not.
    """
    above = tuple(pair for pair in STEPS if pair.at_least(floor))
    if unproven:
        return above
    judged = ((pair, judgement_of(pair, verdicts)) for pair in above)
    return tuple(pair for pair, found in judged if found is not None and found.passed)
