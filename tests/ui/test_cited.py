"""Marks behind the sentences of a reply that a page confirms."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.ui.cited import bare, drawn, numbered, placed
from kvchat.ui.markup import markdown


def cite(page: int, *at: int, name: str = "a.pdf", label: str | None = None) -> dict[str, Any]:
    support = "matched" if at else "given"
    return {
        "document": name, "name": name, "page": page, "label": label, "text": "t",
        "support": support, "at": list(at), "quote": "",
    }  # fmt: skip


def shown(reply: str, *citations: dict[str, Any]) -> str:
    markup = drawn(markdown(placed(reply, citations), "en"), citations, "en")
    return re.sub(
        r'<button type="button" class="kv-ref".*?><b>(\d)</b>.*?</button>', r"[\1]", markup
    )


def test_a_mark_stands_behind_its_sentence_and_names_its_page() -> None:
    reply = "It is green. It is slow."
    found = drawn(
        markdown(placed(reply, [cite(3, 12, label="iii")]), "en"), [cite(3, 12, label="iii")], "en"
    )
    assert "<b>1</b><i> Source 1: a.pdf, p. 3 (printed iii)</i></button> It is slow." in found
    assert shown(reply, cite(3, 12), cite(4, 24)) == "<p>It is green.[1] It is slow.[2]</p>&#10;"


def test_pages_that_are_only_given_get_no_mark_and_no_number() -> None:
    given_first = [cite(9), cite(4, 12)]
    assert [one["page"] for one in numbered(given_first)] == [4]
    assert "[1]" in shown("It is green.", *given_first)
    assert shown("It is green.", cite(9)) == "<p>It is green.</p>&#10;"


def test_one_sentence_of_two_pages_and_two_sentences_of_one() -> None:
    assert "green.[1][2]" in shown("It is green.", cite(3, 12), cite(4, 12))
    assert shown("One.\n\nTwo.", cite(3, 4, 10)) == "<p>One.[1]</p>&#10;<p>Two.[1]</p>&#10;"


def test_a_page_is_marked_anew_where_that_says_something() -> None:
    one_page = shown("One. Two. Three.", cite(3, 4, 9, 16))
    assert one_page == "<p>One.[1] Two. Three.</p>&#10;"
    two_pages = shown("One. Two. Three. Four.", cite(3, 4, 16), cite(4, 9, 22))
    assert two_pages == "<p>One.[1] Two.[2] Three.[1] Four.[2]</p>&#10;"


def test_a_reply_that_repeats_itself_is_not_full_of_marks() -> None:
    line = "It is green. It is slow.\n\n"
    ends = [n * len(line) + at for n in range(40) for at in (12, 24)]
    assert shown(line * 40, cite(3, *ends)).count("[1]") == 1
    numbered = "".join(f"{n}. It is green.\n" for n in range(1, 41))
    ends = [at.end() for at in re.finditer("green.", numbered)]
    assert shown(numbered, cite(3, *ends)).count("[1]") == 1


@pytest.mark.parametrize(
    ("reply", "at"),
    [
        ("```\nx = 1.\n```", 10),
        ("Use `a. b` now.", 7),
        ("| a. | b |\n|---|---|\n| c. | d |", 4),
        ("$$x. y$$", 4),
        ("\\(x. y\\)", 4),
        ("    code. more", 9),
    ],
)
def test_code_tables_and_formulas_stay_as_they_are(reply: str, at: int) -> None:
    assert placed(reply, [cite(1, at)]) == reply


def test_names_are_text_and_forged_places_are_left_alone() -> None:
    evil = cite(1, 3, name='<img src=x onerror=alert(1)>"')
    found = drawn(markdown(placed("Yes. No.", [evil]), "en"), [evil], "en")
    assert "<img" not in found
    assert "onerror=alert(1)&gt;" in found
    forged = "a \ue0f01\ue0f1 b"
    assert placed(forged, [cite(1, 1)]) == forged
    assert "button" not in drawn(markdown(placed("x \ue0f09\ue0f1", []), "en"), [], "en")


@given(st.text(max_size=60), st.lists(st.integers(-2, 70), max_size=5))
def test_nothing_of_a_reply_is_lost(reply: str, places: list[int]) -> None:
    marked = placed(reply, [cite(1, *places)])
    assert marked == reply or bare(marked) == reply
