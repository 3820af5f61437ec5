"""Arabic and Hebrew as they are written, whatever order the file names their letters in."""

import random
import unicodedata

import pytest

from kvchat.documents.reader import read
from kvchat.documents.right_to_left import is_right_to_left, written_order

WIDE, HIGH = 6.0, 10.0


def placed(*lines, shuffle=None):
    """(x of the right edge, y, words) lines as they look: the first letter stands rightmost.

    Numbers and Latin words are given as they are read, and stand from left to right.
    """
    signs = []
    for right, y, words in lines:
        x = right
        for word in words.split(" "):
            order = word if is_right_to_left(word) or not word.isalnum() else word[::-1]
            for letter in order:
                signs.append((letter, (x - WIDE, y, x, y + HIGH), y))
                x -= WIDE
            x -= WIDE / 2
    if shuffle is not None:
        random.Random(shuffle).shuffle(signs)
    text, boxes, baselines = zip(*signs, strict=True)
    return written_order("".join(text), boxes, boxes, baselines)


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_letters_run_from_right_to_left_and_numbers_do_not(shuffle):
    ordered = placed(
        (500, 700, "שנת 1948 ועוד abc מלים"), (500, 680, "שורה שנייה"), shuffle=shuffle
    )
    assert ordered.text == "שנת 1948 ועוד abc מלים\nשורה שנייה"
    assert len(ordered.places()) == len(ordered.text)


def test_the_right_column_is_read_first():
    right = [(500, 700 - 20 * n, f"ימין {'א' * (n + 1)} עוד") for n in range(6)]
    left = [(250, 700 - 20 * n, f"שמאל {'ב' * (n + 1)} עוד") for n in range(6)]
    both = [line for pair in zip(left, right, strict=True) for line in pair]
    lines = placed(*both).text.split("\n")
    assert lines == [words for _, _, words in (*right, *left)]


def test_marks_go_with_the_letter_that_they_stand_on():
    letters = [("د", 100.0), ("ر", 94.0), ("س", 88.0)]
    signs = [(c, (x - WIDE, 0, x, HIGH), 0.0) for c, x in letters]
    signs.insert(0, ("\u0650", (95.5, -3, 98.5, -1), -0.4))  # kasra under the first
    signs.append(("\u064e", (89.5, 11, 92.5, 13), 0.0))  # fatha over the second
    text, boxes, baselines = zip(*signs, strict=True)
    assert written_order("".join(text), boxes, boxes, baselines).text == "د\u0650ر\u064eس"


def test_what_one_sign_stands_for_is_turned_back_but_for_lam_alef():
    one = (10.0, 0.0, 30.0, 10.0)
    assert written_order("بيبح", [one] * 4, [one] * 4, [0.0] * 4).text == "حبيب"
    assert written_order("لا", [one] * 2, [one] * 2, [0.0] * 2).text == "لا"


def test_only_pages_with_enough_of_it_are_put_together_anew():
    assert not is_right_to_left("English with one مرحبا in a long line of English words")
    assert is_right_to_left("مرحبا بالعالم hello")
    assert not is_right_to_left("한국어와 日本語")


def test_real_pages(shared_pdfs):
    def page(name, number=1):
        return read(shared_pdfs / name, name).pages[number - 1].text

    assert "לפי סעיף 15 (ב)(4) לחוק מבקר המדינה" in page("he-issue11656.pdf")
    assert page("ar-words-issue5677.pdf").split("\n") == ["عذراً.", "إشترى", "ماذا؟", "السّيّدة"]
    for number in (1, 2, 3, 4):
        text = page("ar-habibi-rotated.pdf", number)
        assert "habibi" in text
        assert "حَبيبي" in text
    story = page("ar-aljahiz.pdf")
    assert "وَكَانَتْ دَجَاجَتُهُ ٱلَّتِي أَهْدَاهَا دُونَ مَا كَانَ" in story
    assert "قَالَ: “لَا وَٱللّٰهِ وَلَا تِلْكَ ٱلدَّجَاجَةُ!”" in story


def test_every_letter_that_is_written_from_the_right_counts():
    letters = [c for c in map(chr, range(0x110000)) if c.isalpha() and _is_from_the_right(c)]
    assert len(letters) > 1000
    assert all(is_right_to_left(letter) for letter in letters)


def _is_from_the_right(letter):
    return unicodedata.bidirectional(letter) in ("R", "AL")
