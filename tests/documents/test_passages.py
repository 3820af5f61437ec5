import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.documents.passages import split
from tests.documents.made import count_words, document

SENTENCE = "The {} shelf holds seven red books and one blue lamp."


def prose(lines, start=0):
    return "\n".join(SENTENCE.format(n) for n in range(start, start + lines))


def test_passages_are_near_the_target_in_the_models_own_tokens():
    passages = split(document(prose(60), prose(60, 60)), count_words, 80)
    sizes = [count_words(one.text) for one in passages]
    assert len(sizes) > 10
    assert all(35 <= size <= 110 for size in sizes[:-1])


def test_each_part_knows_its_page():
    passages = split(document(prose(9), prose(9, 9), prose(9, 18)), count_words, 80)
    for passage in passages:
        assert passage.first_page == passage.page_starts[0][1]
        assert passage.last_page == passage.page_starts[-1][1]
        for page, text in passage.parts():
            numbers = [int(line.split()[1]) for line in text.split("\n")]
            assert all(n // 9 + 1 == page for n in numbers)
    assert {page for one in passages for page, _ in one.parts()} == {1, 2, 3}
    assert any(one.first_page != one.last_page for one in passages)


def test_pages_without_text_bring_nothing_and_shift_no_number():
    passages = split(document("", prose(5), "", prose(5, 5)), count_words, 500)
    assert [page for _, page in passages[0].page_starts] == [2, 4]


def test_a_passage_ends_before_a_heading_rather_than_in_a_sentence():
    text = f"{prose(7)}\n2.1. The second part\n{prose(7, 7)}"
    first, second = split(document(text), count_words, 75)
    assert first.text.endswith("lamp.")
    assert second.text.startswith("2.1. The second part")


def test_a_passage_knows_the_sections_that_it_stands_in():
    text = (
        f"3.15. /run : Run-time data\n{prose(9)}\n3.15.2. Requirements\n{prose(18, 9)}\n1. An item"
    )
    last = split(document(text), count_words, 80)[-1]
    assert last.heading == "3.15. /run : Run-time data\n3.15.2. Requirements"


def test_headings_of_earlier_chapters_are_left_behind():
    text = f"Chapter 6. Editors\n{prose(9)}\n7.1 Sums of squares\n{prose(18, 9)}"
    assert split(document(text), count_words, 80)[-1].heading == "7.1 Sums of squares"


def test_headers_and_footers_of_many_pages_are_left_out():
    pages = [f"A Manual of Shelves\n{prose(4, 4 * n)}\n{n + 1} of 6" for n in range(6)]
    passages = split(document(*pages), count_words, 80)
    assert not any("Manual" in one.text or " of 6" in one.text for one in passages)
    assert sum(one.text.count("shelf") for one in passages) == 24


def test_rows_of_a_table_at_the_edge_of_every_page_stay():
    pages = [
        f"{n},100 {n},150 {n}1\n{prose(8, 8 * n)}\n{n},900 {n},950 {n}9" for n in range(11, 17)
    ]
    text = "".join(one.text for one in split(document(*pages), count_words, 80))
    assert all(f"{n},100 {n},150 {n}1" in text and f"{n},900" in text for n in range(11, 17))


def test_one_endless_line_is_cut_as_well():
    passages = split(document(prose(60).replace("\n", " ")), count_words, 80)
    assert max(count_words(one.text) for one in passages) <= 110
    passages = split(document("가" * 4000), len, 200)
    assert max(len(one.text) for one in passages) <= 260
    assert "".join(one.text.replace("\n", "") for one in passages) == "가" * 4000


def test_nothing_readable_gives_no_passages():
    assert split(document("", ""), count_words) == ()


def test_tokens_are_counted_once_a_page():
    calls = []

    def count(text):
        calls.append(text)
        return count_words(text)

    split(document(prose(100), prose(100)), count, 50)
    assert len(calls) == 2


@given(st.lists(st.text("ab .\n가나", max_size=300), min_size=1, max_size=3), st.integers(5, 60))
def test_no_text_is_lost_and_order_is_kept(texts, target):
    passages = split(document(*texts), count_words, target)
    whole = "".join("".join(one.text.split()) for one in passages)
    assert whole == "".join("".join(text.split()) for text in texts)
    assert [one.index for one in passages] == list(range(len(passages)))


@pytest.mark.timeout(20)
def test_a_thousand_pages_are_split_in_seconds():
    assert len(split(document(*[prose(40)] * 1000), len, 220)) > 5000
