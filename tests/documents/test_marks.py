"""Where a passage stands on the picture of its page."""

import pytest

from kvchat.documents.reader import page_marks, read
from kvchat.documents.squeeze import found_at, squeezed
from tests.documents.small_pdf import write_pdf

FIRST = "the first line of a passage com"
SECOND = "piler that goes on here"


def test_letters_remember_where_they_came_from():
    letters, places = squeezed("ﬁn: A-b\n한 1")
    assert letters == "finab한1"
    assert places == [0, 0, 1, 4, 6, 8, 10]


def test_a_text_is_found_whole_or_line_by_line():
    letters, _ = squeezed("one two three\nheader\nfour five six")
    assert found_at(letters, "Two, three") == list(range(3, 11))
    by_line = found_at(letters, "one two three\nfour five six")
    assert by_line == [*range(11), *range(17, 28)]
    assert found_at(letters, "nothing of it") == []
    assert found_at(letters, " ,.") == []


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_a_passage_is_marked_line_by_line_as_the_page_is_shown(tmp_path, rotate):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 500, FIRST), (72, 480, SECOND)]], rotate=rotate)
    wide, high = (792, 612) if rotate in (90, 270) else (612, 792)
    [marks] = page_marks(path, 1, [f"{FIRST}{SECOND}"])
    assert len(marks) == 2
    for mark, y in zip(marks, (500, 480), strict=True):
        assert mark.left == pytest.approx(72 / wide, abs=0.01)
        assert 1 - y / high - 12 / high < mark.top < mark.bottom < 1 - y / high + 5 / high
        assert mark.left < mark.right < 1


def test_what_is_not_on_the_page_is_not_marked(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 500, FIRST)]])
    assert page_marks(path, 1, ["no such words", FIRST[:9]])[0] == []
    assert page_marks(path, 2, [FIRST]) == [[]]
    broken = tmp_path / "b.pdf"
    broken.write_bytes(b"%PDF-1.7\nnothing")
    assert page_marks(broken, 1, [FIRST]) == [[]]


def test_passages_of_real_pages_are_found_on_their_pictures(shared_pdfs):
    for name, number in (
        ("long-irs-i1040nr-2007.pdf", 1),
        ("long-fhs-3.0.pdf", 21),
        ("long-debian-install.ko.pdf", 25),
        ("rot-senate-90.pdf", 1),
        ("ko-debian-history.pdf", 8),
    ):
        path = shared_pdfs / name
        lines = read(path, name).pages[number - 1].text.split("\n")
        wanted = ["\n".join(lines[at : at + 4]) for at in range(0, len(lines) - 4, 4)]
        found = page_marks(path, number, wanted)
        missing = [text for text, marks in zip(wanted, found, strict=True) if not marks]
        assert len(missing) <= len(wanted) // 20, (name, missing)
