"""Pictures of text: recognised where Tesseract is installed; what its table says, anywhere."""

import io
import time

import pytest
from PIL import Image, ImageDraw, ImageFont

from kvchat.chat.conversations import Conversations
from kvchat.documents.reader import page_scan
from kvchat.documents.recognise import Tesseract, find_tesseract, recognised
from kvchat.settings import Settings
from tests.documents.small_pdf import write_pdf

WORDS = ["The quick brown fox", "jumps over the lazy dog", "in the year 1948"]

HEAD = "level\tpage\tblock\tpar\tline\tword\tleft\ttop\twidth\theight\tconf\ttext"


def table(*words, wide=1000, high=2000):
    """(block, line, left, top, conf, text) words of 100 x 40."""
    rows = [f"1\t1\t0\t0\t0\t0\t0\t0\t{wide}\t{high}\t-1\t"]
    for block, line, left, top, conf, text in words:
        rows.append(f"5\t1\t{block}\t1\t{line}\t1\t{left}\t{top}\t100\t40\t{conf}\t{text}")
    return "\n".join([HEAD, *rows])


def test_words_become_lines_and_know_their_boxes():
    found = recognised(
        table(
            *[(1, 1, 100, 200, 90, "Hello"), (1, 1, 220, 200, 80, "world")],
            *[(1, 2, 100, 260, 95, "again"), (2, 1, 100, 400, 95, "apart")],
        )
    )
    assert found.text == "Hello world\nagain\n\napart"
    assert found.confidence == 90
    assert found.words[0] == ("Hello", 0.1, 0.1, 0.2, 0.12)


def test_a_hyphen_at_a_line_end_joins_a_word():
    found = recognised(table((1, 1, 0, 0, 90, "the com-"), (1, 2, 0, 50, 90, "piler works")))
    assert found.text == "the\ncompiler works"
    kept = recognised(table((1, 1, 0, 0, 90, "non-"), (1, 2, 0, 50, 90, "ASCII")))
    assert kept.text == "non-\nASCII"


def test_dirt_is_no_text():
    assert recognised(table((1, 1, 0, 0, 21, "|||"), (1, 2, 0, 0, 25, "~~"))).text == ""
    assert recognised(table()).text == ""
    assert recognised("").text == ""
    assert recognised("not\ta\ttable\n\n5").text == ""


def test_korean_and_english_are_read_where_they_are_there():
    assert Tesseract("t", ("eng", "kor", "osd")).used == ("kor", "eng")
    assert Tesseract("t", ("deu", "osd")).used == ("deu",)
    assert Tesseract("t", ("osd",)).used == ()


def test_a_program_that_fails_gives_nothing(tmp_path):
    assert Tesseract(str(tmp_path / "none"), ("eng",)).read(b"x") is None


def picture_of(words, size=48):
    image = Image.new("L", (1240, 400 + 80 * len(words)), 255)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size)
    for number, line in enumerate(words):
        draw.text((120, 120 + 80 * number), line, fill=0, font=font)
    return image


@pytest.fixture
def tesseract():
    found = find_tesseract()
    if found is None or "eng" not in found.languages:
        pytest.skip("Tesseract with English is not installed")
    return found


@pytest.fixture
def scanned(tmp_path):
    """A PDF of three pages: text, a picture of text, a picture of nothing."""
    scan = tmp_path / "scan.pdf"
    blank = Image.new("L", (1240, 640), 255)
    picture_of(WORDS).save(scan, "PDF", resolution=150, save_all=True, append_images=[blank])
    import pikepdf

    text = write_pdf(tmp_path / "text.pdf", [[(72, 700, "a page that has its own text already")]])
    whole = tmp_path / "whole.pdf"
    with pikepdf.open(text) as pdf, pikepdf.open(scan) as more:
        pdf.pages.extend(more.pages)
        pdf.save(whole)
    return whole


def test_a_picture_is_read(tesseract):
    png = io.BytesIO()
    picture_of(WORDS).save(png, "PNG")
    found = tesseract.read(png.getvalue())
    assert found.text.split("\n") == WORDS
    assert found.confidence > 80
    assert tesseract.read(b"no picture") is None


def test_scans_are_grey_and_sharp(scanned):
    image = Image.open(io.BytesIO(page_scan(scanned, 2)))
    assert image.mode == "L"
    assert image.width == pytest.approx(1240 / 150 * 300, abs=4)


@pytest.fixture
def talks(tmp_path):
    found = Conversations(Settings(model=str(tmp_path / "no model")), tmp_path / "data")
    yield found
    found.close()


def recognised_rows(talks, chat):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        (row,) = talks.documents(chat)
        if row.is_complete:
            return row
        time.sleep(0.05)
    raise AssertionError("still recognising")


def test_pages_are_recognised_in_the_background_and_marked_as_such(tesseract, talks, scanned):
    chat = talks.new_chat()
    sha = talks.add_document(chat, scanned, "scan.pdf")
    talks.wait_documents(chat)
    row = recognised_rows(talks, chat)
    assert (row.problem, row.num_recognised, row.num_to_recognise) == (None, 2, 2)
    pages = talks.library.pages(chat, sha)
    assert [page["verdict"] for page in pages] == ["text", "ocr", "scan"]
    document = talks._shelf.document(sha)
    assert document.pages[1].text.split("\n") == WORDS
    assert {note["code"] for note in row.notes} == {
        "document.pages_ocr",
        "document.pages_no_letters",
    }
    [marks] = talks._shelf.marks(sha, 2, ["brown fox jumps over"])
    assert len(marks) == 2
    assert 0.1 < marks[0].left < marks[0].right < 0.7


def test_what_was_recognised_survives_a_restart(tesseract, scanned, tmp_path):
    settings = Settings(model=str(tmp_path / "no model"))
    talks = Conversations(settings, tmp_path / "data")
    chat = talks.new_chat()
    sha = talks.add_document(chat, scanned, "scan.pdf")
    talks.wait_documents(chat)
    recognised_rows(talks, chat)
    talks.close()
    talks = Conversations(settings, tmp_path / "data")
    try:
        row = recognised_rows(talks, chat)
        assert (row.num_to_recognise, row.problem) == (0, None)
        assert talks.library.pages(chat, sha)[1]["verdict"] == "ocr"
    finally:
        talks.close()


def test_switched_off_the_pages_are_listed_until_it_is_switched_on(tesseract, talks, scanned):
    talks.apply({"ocr": "off"})
    chat = talks.new_chat()
    talks.add_document(chat, scanned, "scan.pdf")
    (row,) = talks.wait_documents(chat)
    assert row.is_complete
    [note] = row.notes
    assert note == {"code": "document.pages_without_text", "facts": {"pages": "2–3"}}
    talks.apply({"ocr": "auto"})
    talks.wait_documents(chat)
    row = recognised_rows(talks, chat)
    assert row.num_recognised == 2
    assert "document.pages_ocr" in {note["code"] for note in row.notes}


def test_a_scan_that_was_refused_is_read_once_it_may_be(tesseract, talks, tmp_path):
    path = tmp_path / "scan.pdf"
    picture_of(WORDS).save(path, "PDF", resolution=150)
    talks.apply({"ocr": "off"})
    chat = talks.new_chat()
    talks.add_document(chat, path, "scan.pdf")
    (row,) = talks.wait_documents(chat)
    assert row.problem["code"] == "document_scan"
    talks.apply({"ocr": "auto"})
    talks.wait_documents(chat)
    assert recognised_rows(talks, chat).problem is None


def test_a_scan_of_nothing_says_so(tesseract, talks, tmp_path):
    path = tmp_path / "blank.pdf"
    Image.new("L", (1240, 640), 255).save(path, "PDF", resolution=150)
    chat = talks.new_chat()
    talks.add_document(chat, path, "blank.pdf")
    talks.wait_documents(chat)
    assert recognised_rows(talks, chat).problem["code"] == "document_no_letters"
