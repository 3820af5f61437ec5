from itertools import chain

from kvchat.documents import reading_order


def in_reading_order(text, boxes):
    return reading_order.in_reading_order(text, boxes).text


def laid_out(*lines):
    """Text and boxes as PDFium gives them: (x, y, words) lines, 5 points a letter, 7 high."""
    text, boxes = "", []
    for x, y, words in lines:
        if text:
            text, boxes = text + "\r\n", [*boxes, (0, 0, 0, 0), (0, 0, 0, 0)]
        text += words
        boxes += [(x + 5 * i, y, x + 5 * i + 4.5, y + 7) for i in range(len(words))]
    return text, boxes


LEFT = [f"the left column says number {n}" for n in "abcdefgh"]
RIGHT = [f"and the right one says item {n}" for n in "abcdefgh"]


def rows(*columns, top=600, xs=(50, 250, 450)):
    return [
        (x, top - 12 * n, words)
        for n, row in enumerate(zip(*columns, strict=True))
        for x, words in zip(xs, row, strict=False)
    ]


def test_interleaved_columns_are_read_one_after_the_other():
    text, boxes = laid_out(*rows(LEFT, RIGHT))
    assert in_reading_order(text, boxes) == "\n".join([*LEFT, *RIGHT])


def test_letters_that_go_backwards_at_the_right_edge():
    text, boxes = laid_out(*rows(LEFT, RIGHT), (500, 480, "ab"))
    boxes[-1] = (478, 480, 482.5, 487)
    assert in_reading_order(text, boxes) == "\n".join([*LEFT, *RIGHT, "ab"])


def test_three_columns_under_a_headline_and_over_a_footer():
    third = [line.replace("right one", "last of all") for line in RIGHT]
    text, boxes = laid_out(
        (50, 700, "A headline over " + "all three columns " * 5),
        *rows(LEFT, RIGHT, third),
        (50, 400, "A line at the foot " + "of all three columns " * 4),
    )
    lines = in_reading_order(text, boxes).split("\n")
    assert lines[0].startswith("A headline")
    assert lines[1:-1] == [*LEFT, *RIGHT, *third]
    assert lines[-1].startswith("A line at the foot")


def test_a_headline_in_the_middle_divides_the_columns():
    text, boxes = laid_out(
        *rows(LEFT, RIGHT, top=700),
        (50, 590, "A headline that runs over the whole width of both columns of this one page"),
        *rows(RIGHT, LEFT, top=570),
    )
    lines = in_reading_order(text, boxes).split("\n")
    assert lines[:16] == [*LEFT, *RIGHT]
    assert lines[17:] == [*RIGHT, *LEFT]


def test_columns_that_come_in_order_are_left_as_they_are():
    in_order = [(50, 600 - 12 * n, words) for n, words in enumerate(LEFT)]
    in_order += [(250, 600 - 12 * n, words) for n, words in enumerate(RIGHT)]
    text, boxes = laid_out(*in_order)
    assert in_reading_order(text, boxes) == text


def test_a_table_stays_row_by_row():
    names = [
        "Alabama",
        "Alaska",
        "Arizona",
        "Arkansas",
        "California",
        "Colorado",
        "Delaware",
        "Iowa",
    ]
    numbers = [str(n) for n in (12345, 2345, 34567, 456, 5678, 678, 789, 8910)]
    text, boxes = laid_out(*rows(names, numbers, numbers))
    assert in_reading_order(text, boxes) == text


def test_one_column_of_lines_of_all_lengths_is_left_alone():
    text, boxes = laid_out(*[(50, 700 - 12 * n, "word " * (1 + n * 7 % 12)) for n in range(30)])
    assert in_reading_order(text, boxes) == text


def test_a_lost_blank_between_words_is_put_back():
    text, boxes = laid_out((50, 700, "in"), (50, 680, "more text of the usual height"))
    for word, x in (("voked", 65.0), ("as", 65 + 5 * 5 + 4.5)):
        text += word
        boxes += [(x + 5 * i, 680 - 20, x + 5 * i + 4.5, 667) for i in range(len(word))]
    assert in_reading_order(text, boxes).endswith("voked as")


def test_numbers_of_neighbouring_cells_stay_two_numbers():
    text, boxes = laid_out(
        (50, 700, "more text of the usual height and length"), (50, 680, "Guam 12")
    )
    for number, x in (("3", 120.0), ("0", 160.0)):
        text += number
        boxes += [(x, 680, x + 4.5, 687)]
    assert in_reading_order(text, boxes).endswith("Guam 12 3 0")


def test_letters_of_a_typewriter_face_stay_together():
    # i and l are narrow there: 2 points wide in a cell of 6.
    text = "filename boolean install"
    widths = {"i": 2.0, "l": 2.0, "f": 3.0}
    boxes = []
    for n, char in enumerate(text):
        half = widths.get(char, 5.0) / 2
        boxes.append((6 * n + 3 - half, 0, 6 * n + 3 + half, 5))
    assert in_reading_order(text, boxes) == text


def test_nothing_is_lost_or_made_up():
    text, boxes = laid_out(*rows(LEFT, RIGHT), (300, 300, "alone"))
    before, after = text.split(), in_reading_order(text, boxes).split()
    assert sorted(before) == sorted(after)
    assert list(chain(before)) != after


def test_pages_that_reach_beyond_their_edge_are_read_too():
    text, boxes = laid_out(*rows(LEFT, RIGHT, xs=(-49.5, 150)))
    assert in_reading_order(text, boxes) == "\n".join([*LEFT, *RIGHT])


def test_empty_pages_are_left_alone():
    assert in_reading_order("", []) == ""


def test_every_character_knows_where_it_came_from():
    text, boxes = laid_out(*rows(LEFT, RIGHT))
    ordered = reading_order.in_reading_order(text, boxes)
    places = ordered.places()
    assert len(places) == len(ordered.text)
    there = [(char, at) for char, at in zip(ordered.text, places, strict=True) if at >= 0]
    assert all(text[at] == char for char, at in there)
    assert len({at for _, at in there}) == len(there) == len(text.replace("\r\n", ""))
