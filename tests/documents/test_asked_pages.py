import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.documents.asked_pages import asked_pages

PLAIN = [None] * 50
PRINTED = ["i", "ii", "iii", *(str(number) for number in range(1, 48))]


@pytest.mark.parametrize(
    ("question", "pages"),
    [
        ("summarise pages 10-14", [10, 11, 12, 13, 14]),
        ("Summarize p. 10 to p. 12.", [10, 11, 12]),
        ("pp. 2–4", [2, 3, 4]),
        ("from page 3 to page 5", [3, 4, 5]),
        ("pages 3, 5 and 7", [3, 5, 7]),
        ("what is on page 12?", [12]),
        ("the last page", [50]),
        ("the first three pages", [1, 2, 3]),
        ("last 2 pages", [49, 50]),
        ("10~14쪽 요약", [10, 11, 12, 13, 14]),
        ("10쪽부터 12쪽까지 요약해 줘", [10, 11, 12]),
        ("5쪽과 7쪽", [5, 7]),
        ("3페이지에는 뭐가 있어?", [3]),
        ("마지막 쪽에 뭐라고 써 있어?", [50]),
        ("처음 세 쪽을 요약해 줘", [1, 2, 3]),
        ("pages 14-10", [10, 11, 12, 13, 14]),
    ],
)
def test_pages_that_a_question_names(question, pages):
    found = asked_pages(question, PLAIN)
    assert found is not None
    assert (list(found.pages), found.missing) == (pages, ())


@pytest.mark.parametrize(
    "question",
    ["2쪽으로 요약해 줘", "summarise in 2 pages", "a 10쪽짜리 보고서", "the page size",
     "몇 쪽이야?", "Who won in 2018?", "", "10 pages of text"],
)  # fmt: skip
def test_what_names_no_page(question):
    assert asked_pages(question, PLAIN) is None


def test_pages_that_are_not_there_are_told():
    found = asked_pages("pages 49-60", PLAIN)
    assert found is not None
    assert found.pages == (49, 50)
    assert found.missing
    found = asked_pages("60쪽 요약", PLAIN)
    assert found is not None
    assert (found.pages, found.missing) == ((), (60,))


def test_printed_numbers_are_meant_only_where_it_is_said():
    assert asked_pages("page 14", PRINTED).pages == (14,)
    assert asked_pages("printed page 14", PRINTED).pages == (17,)
    assert asked_pages("인쇄된 14쪽", PRINTED).pages == (17,)
    assert asked_pages("printed page 300", PRINTED).missing == (300,)


def test_what_else_is_asked_is_left():
    assert asked_pages("Does page 7 tell of wine?", PLAIN).rest == "Does tell of wine?"


@given(st.text(max_size=80), st.integers(0, 60))
def test_any_text_names_pages_of_the_document_or_none(question, num_pages):
    found = asked_pages(question, [None] * num_pages)
    if found is not None:
        assert set(found.pages) <= set(range(1, num_pages + 1))
        assert len(found.missing) <= len(question)
        assert found.pages or found.missing
