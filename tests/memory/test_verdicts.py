"""Which pairs may be used, by what a model was measured with."""

import pytest

from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import Verdict, allowed_pairs, failure_of

GOOD, BAD = (0.001, 99.0), (0.5, 60.0)


def known(**found: tuple[float, float]) -> dict[str, Verdict]:
    names = {name: name.replace("_", "/") for name in found}
    return {
        names[name]: Verdict(names[name], kl, same, 0.0, 1024, "t", 0.0)
        for name, (kl, same) in found.items()
    }


@pytest.mark.parametrize(
    ("found", "floor", "allowed"),
    [
        ({}, "int2", "int8/int8 int6/int4 int4/int4"),
        ({}, "int6/int4", "int8/int8 int6/int4"),
        ({}, "int8/int4", "int8/int8"),
        ({}, "fp", ""),
        ({"int8_int8": GOOD, "int4_int4": BAD}, "int4", "int8/int8 int6/int4"),
        ({"int6_int4": BAD}, "int4", "int8/int8"),
        ({"int6_int4": BAD, "int4_int4": GOOD}, "int4", "int8/int8 int4/int4"),
        ({"int8_int8": BAD}, "int4", ""),
        ({"int2_int2": BAD}, "int4", "int8/int8 int6/int4 int4/int4"),
    ],
)
def test_not_below_the_floor_and_none_that_failed(
    found: dict[str, tuple[float, float]], floor: str, allowed: str
):
    pairs = allowed_pairs(known(**found), FormatPair.parse(floor))
    assert " ".join(map(str, pairs)) == allowed


def test_what_speaks_against_a_pair():
    verdicts = known(int8_int4=BAD, int4_int4=GOOD, int2_int2=BAD)

    def against(text: str) -> str | None:
        found = failure_of(FormatPair.parse(text), verdicts)
        return None if found is None else found.pair

    assert against("int8/int4") == against("int6/int4") == "int8/int4"
    assert against("int2") == "int2/int2"
    assert against("int4") is against("int8") is against("fp") is against("int4/int8") is None
