"""What `bench ui` counts, over a tiny model: the parts of the program that it says, no others."""

from kvchat.bench.ui import NEW_TOKENS, Spent, measured
from kvchat.engine.engine import Engine


def test_each_number_of_turns_has_a_row(engine: Engine) -> None:
    rows = list(measured(engine, (1, 6)))
    assert [row["turns"] for row in rows] == [1, 6]
    for row in rows:
        assert row["name"] == "ui"
        assert row["frame_ms"] > 0
        assert row["core_percent"] > 0
        assert row["updates_per_s"] > 0
    assert rows[1]["frame_bytes"] > rows[0]["frame_bytes"] + 5 * 200
    assert "counted" not in engine.frame.__qualname__


def test_what_is_counted_is_the_processors_time() -> None:
    spent = Spent()

    def work(size: int) -> int:
        return sum(i * i for i in range(size))

    call = spent.counting(work)
    assert call(200_000) == work(200_000)
    assert spent.num == 1
    assert spent.cpu_s > 0
    assert NEW_TOKENS > 64  # so that a block is sealed meanwhile
