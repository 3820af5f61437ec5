"""Which pairs may be used, by what a model was measured with."""

import pytest

from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import (
    STEPS,
    Verdict,
    allowed_pairs,
    failure_of,
    judgement_of,
    unjudged_steps,
)

GOOD, BAD = (0.001, 99.0), (0.5, 60.0)
ALL = "int8/int8 int6/int4 int4/int4"


def known(**found: tuple[float, float]) -> dict[str, Verdict]:
    names = {name: name.replace("_", "/") for name in found}
    return {
        names[name]: Verdict(names[name], kl, same, 0.0, 1024, "t", 0.0)
        for name, (kl, same) in found.items()
    }


@pytest.mark.parametrize(
    ("found", "floor", "allowed"),
    [
        ({}, "int2", ""),
        ({"int8_int8": GOOD, "int6_int4": GOOD, "int4_int4": GOOD}, "int2", ALL),
        ({"int8_int8": GOOD, "int6_int4": GOOD, "int4_int4": GOOD}, "int6/int4", ALL[:19]),
        ({"int4_int4": GOOD}, "int2", ALL),  # what is more exact than a pair that passed
        ({"int4_int4": GOOD}, "int8/int4", "int8/int8"),
        ({"int4_int4": GOOD}, "fp", ""),
        ({"int8_int8": GOOD}, "int4", "int8/int8"),
        ({"int8_int8": GOOD, "int4_int4": BAD}, "int4", "int8/int8"),
        ({"int6_int4": BAD}, "int4", ""),
        ({"int6_int4": BAD, "int4_int4": GOOD}, "int4", "int8/int8 int4/int4"),
        ({"int8_int8": BAD}, "int4", ""),
        ({"int2_int2": BAD}, "int4", ""),
        ({"int2_int2": BAD, "int8_int4": GOOD}, "int4", "int8/int8"),
    ],
)
def test_not_below_the_floor_and_only_what_passed(
    found: dict[str, tuple[float, float]], floor: str, allowed: str
):
    pairs = allowed_pairs(known(**found), FormatPair.parse(floor))
    assert " ".join(map(str, pairs)) == allowed
    unproven = allowed_pairs(known(**found), FormatPair.parse(floor), unproven=True)
    assert unproven == tuple(one for one in STEPS if one.at_least(FormatPair.parse(floor)))


@pytest.mark.parametrize(
    ("found", "decides"),
    [
        ({}, {}),
        ({"int6_int4": GOOD}, {"int8/int8": "int6/int4", "int6/int4": "int6/int4"}),
        ({"int8_int8": BAD}, dict.fromkeys(ALL.split(), "int8/int8")),
        ({"int6_int4": BAD, "int8_int8": GOOD},
         {"int8/int8": "int8/int8", "int6/int4": "int6/int4", "int4/int4": "int6/int4"}),
    ],
)  # fmt: skip
def test_what_is_known_of_the_steps_and_by_which_verdict(
    found: dict[str, tuple[float, float]], decides: dict[str, str]
):
    verdicts = known(**found)
    judged = {str(one): judgement_of(one, verdicts) for one in STEPS}
    assert {name: one.pair for name, one in judged.items() if one is not None} == decides
    assert {str(one) for one in unjudged_steps(verdicts)} == set(ALL.split()) - decides.keys()


def test_the_closest_of_what_passed_speaks_for_a_pair():
    verdicts = known(int6_int4=(0.001, 97.0), int4_int4=(0.009, 95.0))
    found = judgement_of(FormatPair.parse("int8"), verdicts)
    assert found is not None
    assert found.pair == "int6/int4"


def test_what_speaks_against_a_pair():
    verdicts = known(int8_int4=BAD, int4_int4=GOOD, int2_int2=BAD)

    def against(text: str) -> str | None:
        found = failure_of(FormatPair.parse(text), verdicts)
        return None if found is None else found.pair

    assert against("int8/int4") == against("int6/int4") == "int8/int4"
    assert against("int2") == "int2/int2"
    assert against("int4") is against("int8") is against("fp") is against("int4/int8") is None
