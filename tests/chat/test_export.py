"""A ledger to be shown to others: every figure and code, and no word of anybody's."""

import json

from kvchat.chat.export import LEFT_OUT, report_lines
from kvchat.store.records import LedgerEntry

ROWS = (
    LedgerEntry(
        4,
        "chat one",
        12.5,
        "read_passages",
        {"document": "sha of a secret", "name": "secret.pdf", "tokens": 700},
        ("turn a", "turn b"),
        2**40,
        None,
        "too_large",
        ({"document": "sha of a secret", "pages": [2, 3]},),
        {"formats": ["fp/fp"], "tier": "device"},
        None,
        700,
        "read_again",
        "turn b",
    ),
    LedgerEntry(
        5,
        "chat one",
        13.0,
        "answer_failed",
        {"error": {"code": "step_failed", "facts": {"why": "secret words", "tokens": 9}}},
        ("turn b",),
        0,
        None,
        "step_failed",
    ),
)


def test_a_line_an_entry_with_figures_and_without_texts() -> None:
    lines = list(report_lines(ROWS))
    found = [json.loads(line) for line in lines]
    assert not any("secret" in line or "turn a" in line or "chat one" in line for line in lines)
    first, second = found
    assert (first["code"], first["reason"], first["lost_tokens"]) == (
        "read_passages",
        "too_large",
        700,
    )
    assert first["arguments"] == {"document": LEFT_OUT, "name": LEFT_OUT, "tokens": 700}
    assert first["documents"][0]["pages"] == [2, 3]
    assert first["before"] == {"formats": ["fp/fp"], "tier": "device"}
    assert second["arguments"]["error"] == {
        "code": "step_failed",
        "facts": {"why": LEFT_OUT, "tokens": 9},
    }


def test_the_same_turn_has_the_same_number_and_another_one_another() -> None:
    first, second = (json.loads(line) for line in report_lines(ROWS))
    assert first["turns"][1] == second["turns"][0] == first["question"]
    assert first["turns"][0] != first["turns"][1]
    assert first["chat"] == second["chat"]
