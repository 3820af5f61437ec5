"""`bench attention` over a tiny model: both sides attend to the same values, and the row says what
was read.
"""

import pytest

from kvchat.bench import attention
from kvchat.bench.telling import told
from kvchat.engine.engine import Engine
from kvchat.memory.formats import FormatPair


@pytest.mark.parametrize(("pair", "most"), [("fp", 1e-5), ("int8", 0.05)])
def test_both_sides_attend_to_the_same(engine: Engine, pair: str, most: float) -> None:
    sides = attention.Sides(engine, FormatPair.parse(pair), 200)
    for _ in range(3):
        drawn = sides.draw()
        for theirs, ours in zip(sides.by_library(drawn), sides.by_ours(drawn), strict=True):
            assert (theirs.transpose(1, 2) - ours).abs().max() < most


def test_a_row_tells_what_was_read(engine: Engine) -> None:
    rows = list(attention.measured(engine, ("fp", "int8"), (192,), steps=2))
    assert [(row["pair"], row["context"]) for row in rows] == [("fp/fp", 192), ("int8/int8", 192)]
    each = engine.pool.geometries[0].bytes_per_token
    assert rows[0]["read_bytes"] == each * (192 + attention.WARM_STEPS + 2)
    assert rows[1]["read_bytes"] < rows[0]["read_bytes"]
    for row in rows:
        assert row["ratio"] > 0
        assert row["backend"] == "cpu"
        assert told(row, "ko") != told(row, "en")
