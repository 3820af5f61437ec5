"""More of the same, done for one question, is one ledger entry."""

import hypothesis.strategies as st
from hypothesis import given

from kvchat.planner.growing import Entry, Growing, together
from kvchat.planner.ledger import entry, pages, stored

COUNTED = {"drop_idle": "blocks", "requantize": "tokens", "evict": "tokens", "offload": "tokens",
           "bring_back": "tokens", "raise": "tokens"}  # fmt: skip


def row(code: str, num: int = 64, turns: str = "a", **about: object) -> Entry:
    arguments = {COUNTED[code]: num} | ({"formats": "int8"} if code == "requantize" else {})
    named = {"undo": "read_again", "reason": "no_room", "bytes": 100} | about
    return entry(
        code, arguments, str(named["reason"]), int(str(named["bytes"])), 50, tuple(turns),
        documents=[pages("d", (1,))], before=stored(["fp"], "device"),
        after=stored(["int8"], "device"), lost_tokens=2, undo=named["undo"],  # type: ignore[arg-type]
    )  # fmt: skip


def written(rows: list[Entry]) -> list[Entry]:
    """As a chat keeps them."""
    growing, kept = Growing(), dict[int, Entry]()
    for one in rows:
        found = growing.grown(one)
        if found is None:
            found = one | {"number": len(kept) + 1}
            growing.begin(found)
        kept[found["number"]] = found
    return list(kept.values())


def test_twelve_steps_are_one_entry_with_one_sum() -> None:
    (found,) = written([row("requantize", 192, "abcdefghijkl"[n : n + 2]) for n in range(12)])
    assert found["arguments"] == {"tokens": 12 * 192, "formats": "int8"}
    assert found["turns"] == list("abcdefghijkl")
    assert (found["bytes_predicted"], found["bytes_measured"], found["lost_tokens"]) == (
        1200, 600, 24,
    )  # fmt: skip
    assert found["documents"] == [pages("d", (1,))]
    assert (found["before"], found["after"]) == (
        stored(["fp"], "device"),
        stored(["int8"], "device"),
    )


def test_what_is_of_another_kind_is_another_entry() -> None:
    other = row("requantize")
    other["arguments"]["formats"] = "int6/int4"
    moved = row("requantize") | {"after": stored(["int8"], "host")}
    kinds = [row("requantize"), other, row("requantize", reason="others_grew"), moved,
             row("requantize", undo="raise"), row("evict"), row("drop_idle")]  # fmt: skip
    assert len(written(kinds)) == len(kinds)
    assert len(written([*kinds, *kinds])) == len(kinds)


def test_what_came_back_in_between_was_not_there_all_the_time() -> None:
    """Marks are told by the order of entries: moved, brought back, moved again."""
    rows = written([row("offload"), row("bring_back"), row("offload"), row("offload")])
    assert [(one["code"], one["arguments"]["tokens"]) for one in rows] == [
        ("offload", 64), ("bring_back", 64), ("offload", 128),
    ]  # fmt: skip
    better = entry("held_better", {"num_turns": 1}, "read_anew", 0, None, ("a",))
    rows = written([row("requantize"), row("raise"), row("requantize"), better, row("evict")])
    assert [one["code"] for one in rows] == [
        "requantize", "raise", "requantize", "held_better", "evict",
    ]  # fmt: skip


def test_steps_that_were_halved_twice_went_from_the_first_to_the_last() -> None:
    halved = [
        entry("shrink_chunk", {"tokens": now, "was": 2 * now}, "out_of_memory", 1, None)
        for now in (256, 128, 64)
    ]
    (found,) = written(halved)
    assert found["arguments"] == {"tokens": 64, "was": 512}


def test_what_was_lost_in_mid_answer_holds_from_its_first_token_on() -> None:
    lost = [
        entry("evict_from", {"tokens": 64, "from_token": at}, "no_room", 1, 1, ("a",))
        for at in (7, 71)
    ]
    assert together(*lost)["arguments"] == {"tokens": 128, "from_token": 7}


def test_each_part_that_moved_makes_a_step_slower() -> None:
    moved = [row("offload") for _ in range(2)]
    for one, ms in zip(moved, ("1.5", "0.7"), strict=True):
        one["arguments"]["ms"] = ms
    assert together(*moved)["arguments"] == {"tokens": 128, "ms": "2.2"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(COUNTED)), st.integers(1, 9), st.text("abc", max_size=3),
            st.sampled_from(("no_room", "others_grew")), st.integers(0, 99),
        )
    )
)  # fmt: skip
def test_nothing_is_told_twice_and_nothing_is_left_out(
    done: list[tuple[str, int, str, str, int]],
) -> None:
    rows = [row(c, num, turns, reason=reason, bytes=b) for c, num, turns, reason, b in done]
    kept = written(rows)

    def total(of: list[Entry], code: str) -> tuple[int, int, int, set[str]]:
        those = [one for one in of if one["code"] == code]
        return (
            sum(one["arguments"][COUNTED[code]] for one in those),
            sum(one["bytes_predicted"] for one in those),
            sum(one["lost_tokens"] for one in those),
            {turn for one in those for turn in one["turns"]},
        )

    for code in COUNTED:
        assert total(kept, code) == total(rows, code)
