"""Every code that the program names has its sentences, in both languages, with the same facts."""

import re
import string
from pathlib import Path

import pytest

from kvchat import errors
from kvchat.errors import RequestError, ServeError
from kvchat.planner.measures import DropIdle, ShrinkChunk, ShrinkReply, TruncateTurns
from kvchat.units import GIB, format_size
from kvchat.wording import LANGUAGES, table

REPO = Path(__file__).resolve().parent.parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in (REPO / "kvchat").rglob("*.py")}
NAMES = "|".join(name for name, one in vars(errors).items() if isinstance(one, type))
RAISED = re.compile(rf"\b(?:{NAMES})\(\s*\"([a-z][a-z0-9_]+)\"")
SAID = re.compile(r"\b(?:say|_say|K\.say)\(\s*\"([a-z]+\.[a-z0-9_.]+)\"")


def codes(pattern: re.Pattern[str]) -> list[str]:
    return sorted({code for text in SOURCES.values() for code in pattern.findall(text)})


def facts(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


@pytest.mark.parametrize("code", codes(RAISED))
def test_every_error_has_a_sentence_and_a_remedy(code: str) -> None:
    for name in (f"error.{code}", f"error.{code}.remedy"):
        assert set(table()[name]) == set(LANGUAGES)


def test_every_sentence_that_is_said_is_there() -> None:
    assert len(codes(SAID)) > 10
    assert [code for code in codes(SAID) if code not in table()] == []


def test_every_measure_and_its_reason_have_a_sentence() -> None:
    taken = {one.code for one in (DropIdle, ShrinkChunk, ShrinkReply, TruncateTurns)}
    for code in taken | {"retry", "restore_turns", "read_whole", "read_passages", "fewer_passages"}:
        assert f"ledger.{code}" in table()
    reasons = "no_room out_of_memory prompt_too_long fits too_large setting left_out"
    for reason in reasons.split():
        assert f"reason.{reason}" in table()


def test_both_languages_tell_the_same_facts() -> None:
    differing = {
        code: sentences
        for code, sentences in table().items()
        if len({frozenset(facts(sentence)) for sentence in sentences.values()}) > 1
    }
    assert differing == {}


def test_counts_have_separators_and_ports_have_none() -> None:
    facts = {"tokens": 50020, "capacity": 8192, "needed": "1", "allowed": "2"}
    said = RequestError("prompt_over_length", **facts).message()
    assert "50,020 tokens" in said
    assert "8,192" in said
    assert format_size(13733 * GIB) == "13,733.00 GiB"
    assert ServeError("port_range", port=99999).message() == "99999 is not a port."
    ports = [code for code, one in table().items() if re.search(r"\{(port|asked)\}", one["en"])]
    assert ports == []
