"""Marks, and what was asked back, as the ledger tells them: values in, values out."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from kvchat.chat.asked_back import asked_back, came_back
from kvchat.chat.marks import Marks, formats_of, held_better, marks, read_anew
from kvchat.chat.reading_again import read_tokens_per_s
from kvchat.chat.undo import offered
from kvchat.planner.ledger import pages
from kvchat.store.records import LedgerEntry

BRANCH = ("a", "b", "c", "now")


def rows(*said: tuple[str, str] | tuple[str, str, dict[str, Any]], on: str = "now") -> Any:
    """Entries numbered from 1: code, one letter a turn, arguments."""
    numbers = count(1)
    undo = {
        "truncate_turns": "read_again",
        "summarize": "read_again",
        "requantize": "read_again",
        "offload": "bring_back",
    }
    return [
        LedgerEntry(
            next(numbers), "chat", 1.0, code, dict(*rest), tuple(turns), 0, None, "no_room",
            undo=undo.get(code), question=on,
        )
        for code, turns, *rest in said
    ]  # fmt: skip


def test_the_newest_prompt_says_what_is_left_out() -> None:
    cut = rows(("truncate_turns", "a"), ("truncate_turns", "ab"))
    assert marks(cut, BRANCH).left_out == {"a", "b"}
    back = rows(("truncate_turns", "ab"), ("restore_turns", "ab"))
    assert marks(back, BRANCH).left_out == set()


def test_a_summary_stands_for_all_that_is_left_out_with_it() -> None:
    cut = rows(("truncate_turns", "a"), ("summarize", "ab"))
    assert marks(cut, BRANCH) == Marks(frozenset("ab"), frozenset("ab"))
    cut = rows(("summarize", "ab"), ("truncate_turns", "ab"))
    assert marks(cut, BRANCH) == Marks(frozenset("ab"))
    assert marks(rows(("summarize", "ab"), ("restore_turns", "")), BRANCH) == Marks()


def test_what_was_done_on_another_branch_says_nothing_here() -> None:
    here = rows(("truncate_turns", "ab"), on="c")
    there = rows(("restore_turns", ""), on="another version of now")
    assert marks([*here, *there], BRANCH).left_out == {"a", "b"}
    assert marks([*here, *there], ("a", "another version of now")).left_out == set()
    unknown = rows(("truncate_turns", "a"), on=None)  # type: ignore[arg-type]
    assert marks(unknown, BRANCH).left_out == {"a"}  # of an earlier version, which did not say


def test_losses_hold_until_something_better_is_held() -> None:
    less = rows(
        ("requantize", "ab", {"formats": "int8/int8"}),
        ("requantize_from", "b", {"formats": "int6/int4"}),
        ("evict", "c"),
        ("offload", "a"),
    )
    found = marks(less, BRANCH)
    assert found.formats == {"a": "int8/int8", "b": "int6/int4"}
    assert (found.evicted, found.on_host) == ({"c"}, {"a"})
    found = marks([*less, *rows(("held_better", "bc")), *rows(("bring_back", "a"))], BRANCH)
    assert found == Marks(formats={"a": "int8/int8"})


def span(name: str, tier: str | None, *formats: str, evicted: int = 0) -> dict[str, Any]:
    held = {"tier": tier, "formats": dict.fromkeys(formats, 1), "evicted_tokens": evicted}
    return {"kind": "turn", "name": name, **held}


def test_a_frame_says_what_is_held_better() -> None:
    found = Marks(on_host=frozenset("cd"), formats={"a": "int6/int4", "b": "int6/int4"})
    spans = [
        span("a", "device", "int8/int8", "fp/fp"),
        span("b", "device", "fp/fp", "int6/int4"),  # some of it still is
        span("c", "mixed", "fp/fp"),
        span("d", "device", "fp/fp"),
        span("e", "device", "fp/fp"),  # nothing was done to it
    ]
    assert held_better(found, spans) == ("a", "d")
    assert formats_of(spans, ("a", "d")) == "fp/fp + int8/int8"
    sized = [one | {"tokens": 10} for one in spans]
    assert read_anew(sized, 20) == {"c", "d", "e"}
    assert read_anew(sized, 21) == {"c", "d", "e"}, "the rest of it was"
    assert held_better(Marks(formats={"a": "int4/int4"}), [span("a", None)]) == ()
    holes = [span("a", "device", "fp/fp", evicted=64), span("b", "device", "fp/fp")]
    assert held_better(Marks(evicted=frozenset("ab")), holes) == ("b",)


def test_documents_are_marked_as_turns_are() -> None:
    """Those that stand after the system text; what is held better is marked no longer."""
    less = rows(("requantize", "a", {"formats": "int8/int8"}))
    less = [replace(row, documents=(pages("d", (1, 2)), pages("e"))) for row in less]
    found = marks(less, BRANCH)
    assert found.documents == {"d": "int8/int8", "e": "int8/int8"}
    assert offered(less, BRANCH) == (1,)
    spans = [span("d", "device", "fp/fp") | {"kind": "document"}, span("e", "device", "int8/int8")]
    assert held_better(found, spans) == ("d",)
    better = [
        replace(row, number=2, documents=(pages("d"),))
        for row in rows(("documents_held_better", ""))
    ]
    assert marks([*less, *better], BRANCH).documents == {"e": "int8/int8"}
    assert marks([*less, *better], BRANCH).formats == {"a": "int8/int8"}


def test_of_what_was_done_twice_the_newest_is_offered() -> None:
    """An entry whose every turn has a newer one of its kind, or is left out, tells of the past."""
    twice = rows(
        ("requantize", "a", {"formats": "int8/int8"}),
        ("requantize", "ab", {"formats": "int6/int4"}),
    )
    assert offered(twice, BRANCH) == (2,)
    apart = rows(
        ("requantize", "ab", {"formats": "int8/int8"}),
        ("requantize", "a", {"formats": "int6/int4"}),
    )
    assert offered(apart, BRANCH) == (1, 2)
    gone = rows(*_said(apart), ("truncate_turns", "a"))
    assert offered(gone, BRANCH) == (1, 3)
    other = rows(
        ("requantize", "a", {"formats": "int8/int8"}), ("held_better", "a"), ("evict", "a")
    )  # fmt: skip
    other[2] = replace(other[2], undo="read_again")
    assert offered(other, BRANCH) == (3,)


def undo(entry: int, code: str, turns: str) -> tuple[str, str, dict[str, Any]]:
    return ("undo", turns, {"entry": entry, "code": code})


def test_turns_stay_wanted_until_they_must_go_again() -> None:
    said = rows(("truncate_turns", "abc"), undo(1, "truncate_turns", "abc"))
    found = asked_back(said, BRANCH)
    assert (found.numbers, found.wanted, found.restore) == ((1,), {"a", "b", "c"}, False)
    done = rows(*_said(said), ("undone", "abc", {"entry": 1}))
    assert asked_back(done, BRANCH).numbers == ()
    assert asked_back(done, BRANCH).wanted == {"a", "b", "c"}
    again = rows(*_said(done), ("truncate_turns", "ab"))
    assert asked_back(again, BRANCH).wanted == {"c"}


def _said(found: Sequence[LedgerEntry]) -> list[Any]:
    return [(row.code, row.turns, row.arguments) for row in found]


def test_what_was_compressed_is_restored_once() -> None:
    said = rows(("requantize", "a", {"formats": "int8/int8"}), undo(1, "requantize", "a"))
    assert asked_back(said, BRANCH).restore
    (row,) = came_back(said, BRANCH, ())
    assert (row["code"], row["arguments"], row["turns"]) == (
        "undone", {"entry": 1, "code": "requantize"}, ["a"],
    )  # fmt: skip
    assert not asked_back(rows(*_said(said), ("undone", "a", {"entry": 1})), BRANCH).restore


def test_turns_came_back_only_if_none_of_them_is_left_out() -> None:
    said = rows(("truncate_turns", "ab"), undo(1, "truncate_turns", "ab"))
    assert came_back(said, BRANCH, ("b",)) == []
    assert [row["code"] for row in came_back(said, BRANCH, ("c",))] == ["undone"]
    assert came_back(said, ("another",), ()) == []


def test_offered_is_what_still_holds_and_was_not_asked_for() -> None:
    said = rows(
        ("truncate_turns", "a"),
        ("truncate_turns", "ab"),
        ("requantize", "c", {"formats": "int8/int8"}),
        ("shrink_chunk", ""),
        ("offload", "c"),
    )
    assert offered(said, BRANCH) == (2, 3, 5)
    asked = rows(*_said(said), undo(3, "requantize", "c"), ("bring_back", "c"))
    assert offered(asked, BRANCH) == (2,)
    assert offered(rows(*_said(said), ("restore_turns", "")), BRANCH) == (3, 5)


def test_the_speed_is_the_newest_of_which_enough_was_read() -> None:
    short = {"prompt_tokens": 40, "reused_tokens": 30, "prefill_s": 5.0}
    read = {"prompt_tokens": 400, "reused_tokens": 100, "prefill_s": 1.5}
    assert read_tokens_per_s([{}, None, short, read, short]) == 200
    assert read_tokens_per_s([short]) is None
    assert read_tokens_per_s([]) is None
