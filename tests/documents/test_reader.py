"""Reading, on PDFs made here. What third-party files end in stands in test_shared_pdfs.py."""

import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest

from kvchat.documents import limits, reader
from kvchat.documents.child import Child
from kvchat.documents.reader import Page, ReadDocument, notes, page_image, page_ranges, read
from kvchat.errors import DocumentError
from kvchat.wording import say
from tests.documents.small_pdf import write_pdf

WORDS = "the office has a compiler and a garden behind it"


def refused(path, name="a.pdf", **more):
    with pytest.raises(DocumentError) as caught:
        read(path, name, **more)
    for lang in ("en", "ko"):
        assert "{" not in caught.value.line(lang)
    return caught.value.code


def children():
    return [child.pid for child in reader.reading.children if child.pid is not None]


def kill_children():
    for pid in children():
        os.kill(pid, signal.SIGTERM)


def in_columns(left, right, top):
    """Two columns whose lines stand in the file row by row."""
    return [
        (x, top - 14 * n, words)
        for n, pair in enumerate(zip(left, right, strict=True))
        for x, words in zip((72, 320), pair, strict=True)
    ]


@pytest.fixture
def two_pages(tmp_path):
    return write_pdf(
        tmp_path / "two.pdf",
        [[(72, 700, WORDS), (72, 680, "두 번째 줄입니다")], [(72, 700, "page two says more")]],
    )


def test_pages_count_from_one_and_carry_their_text(two_pages):
    document = read(two_pages, "../나의 \n문서.pdf")
    assert document.name == "나의 문서.pdf"
    assert len(document.sha256) == 64
    assert [page.number for page in document.pages] == [1, 2]
    assert document.pages[0].text == f"{WORDS}\n두 번째 줄입니다"
    assert {page.verdict for page in document.pages} == {"text"}


@pytest.mark.parametrize(
    "name",
    [
        *("보고서.pdf", unicodedata.normalize("NFD", "보고서.pdf"), "q'uo\"te.pdf", "<b>.pdf"),
        *("new\nline.pdf", "CON.pdf", "..pdf", "긴" * 70 + ".pdf", " .pdf", "%2e%2e.pdf"),
        pytest.param(
            os.fsdecode("보고서.pdf".encode("euc-kr")),
            marks=pytest.mark.skipif(sys.platform != "linux", reason="bytes are names on Linux"),
        ),
    ],
)
def test_files_of_any_name_are_read(two_pages, name):
    path = two_pages.with_name(name)
    try:
        path.write_bytes(two_pages.read_bytes())
    except OSError:
        pytest.skip("this system does not take such a name")
    document = read(path, name)
    assert len(document.pages) == 2
    assert document.name.isprintable()
    assert page_image(path, 1, width=30).startswith(b"\x89PNG")


def test_a_printed_label_stands_beside_the_number_only_where_it_differs(tmp_path):
    pages = [[(72, 700, WORDS)]] * 3
    roman = read(write_pdf(tmp_path / "a.pdf", pages, first_label="/S /r"), "a.pdf")
    assert [page.label for page in roman.pages] == ["i", "ii", "iii"]
    plain = read(write_pdf(tmp_path / "b.pdf", pages, first_label="/S /D"), "b.pdf")
    assert [page.label for page in plain.pages] == [None, None, None]


def test_the_same_bytes_are_the_same_document(two_pages):
    assert read(two_pages, "one.pdf").sha256 == read(two_pages, "other.pdf").sha256


def test_columns_are_read_one_after_the_other_on_turned_pages_too(tmp_path):
    left = [f"left column line number {n} of ten" for n in range(10)]
    right = [f"right column line number {n} too" for n in range(10)]
    lines = in_columns(left, right, top=500)
    for rotate in (0, 90, 180, 270):
        turned = read(write_pdf(tmp_path / "a.pdf", [lines], rotate=rotate), "a.pdf")
        assert turned.pages[0].text == "\n".join([*left, *right])


def test_pages_without_text_are_named(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)], [(72, 700, "7")], []], picture=True)
    document = read(path, "a.pdf")
    assert [page.verdict for page in document.pages] == ["text", "scan", "scan"]
    assert notes(document) == [("document.pages_without_text", {"pages": "2–3"})]
    for lang in ("en", "ko"):
        assert "2–3" in say("document.pages_without_text", lang, pages="2–3")
        assert "2–3" in say("document.pages_unreadable", lang, pages="2–3")


def test_pages_whose_fonts_say_nothing_are_left_out_and_named(tmp_path):
    garbage = "".join(chr(c) for c in range(0xE000, 0xE040))
    document = read(write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)], [(9, 700, garbage)]]), "a")
    assert document.pages[1] == Page(2, None, "", "unreadable")
    assert notes(document) == [("document.pages_unreadable", {"pages": "2"})]


def test_a_scan_a_blank_file_and_a_garbled_one_are_told_apart(tmp_path):
    assert refused(write_pdf(tmp_path / "a.pdf", [[], []], picture=True)) == "document_scan"
    assert refused(write_pdf(tmp_path / "a.pdf", [[], []])) == "document_blank"
    garbage = "".join(chr(c) for c in range(0xE000, 0xE040))
    assert refused(write_pdf(tmp_path / "a.pdf", [[(9, 700, garbage)]])) == "document_unreadable"


def test_files_that_are_no_pdf_say_so(tmp_path):
    def file(body):
        path = tmp_path / "x.pdf"
        path.write_bytes(body)
        return path

    assert refused(file(b"")) == "document_empty"
    assert (
        refused(file(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99), "a.doc")
        == "document_old_office"
    )
    assert refused(file(b"\x89PNG\r\n\x1a\n" + b"\0" * 99), "a.png") == "document_other_kind"
    assert refused(file(b"<html><body>no</body></html>")) == "document_not_pdf"
    assert refused(file(b"%PDF-1.7\n" + b"\x00" * 3000)) == "document_damaged"
    assert refused(write_pdf(tmp_path / "y.pdf", [])) == "document_no_pages"
    assert refused(tmp_path / "nowhere.pdf") == "document_unopened"
    assert refused(tmp_path) == "document_unopened"


def test_limits_are_said(two_pages, monkeypatch):
    monkeypatch.setattr(limits, "MOST_BYTES", 100)
    assert refused(two_pages) == "document_too_large"
    monkeypatch.setattr(limits, "MOST_BYTES", 10**9)
    monkeypatch.setattr(limits, "MOST_PAGES", 1)
    assert refused(two_pages) == "document_too_long"


def test_progress_counts_every_page(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]] * 5)
    seen = []
    read(path, "a.pdf", on_page=lambda page, of: seen.append((page.number, of)))
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_reading_can_be_stopped_and_the_next_file_is_read(tmp_path, two_pages):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]] * 400)
    cancel = threading.Event()
    seen = []

    def stop_early(page, of):
        seen.append(page.number)
        cancel.set()

    assert refused(path, on_page=stop_early, cancel=cancel) == "document_cancelled"
    assert len(seen) == 1
    assert len(read(two_pages, "a.pdf").pages) == 2


def test_a_child_that_dies_is_started_again(two_pages):
    read(two_pages, "a.pdf")
    kill_children()
    assert len(read(two_pages, "a.pdf").pages) == 2


def test_a_page_that_kills_the_child_costs_only_that_page(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, f"{WORDS} {n}")] for n in range(300)])

    def kill_once(page, of):
        if page.number == 20:
            kill_children()

    document = read(path, "a.pdf", on_page=kill_once)
    lost = [page.number for page in document.pages if page.verdict != "text"]
    assert [page.number for page in document.pages] == list(range(1, 301))
    assert 1 <= len(lost) <= len(reader.reading.children)
    assert notes(document) == [("document.pages_unreadable", {"pages": page_ranges(lost)})]


def test_pages_of_a_long_file_come_in_their_order_from_several_children(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, f"{WORDS} {n}")] for n in range(1, 1001)])
    seen = []
    document = read(path, "a.pdf", on_page=lambda page, of: seen.append((page.number, of)))
    assert seen == [(n, 1000) for n in range(1, 1001)]
    assert [page.text for page in document.pages] == [f"{WORDS} {n}" for n in range(1, 1001)]
    assert len(children()) == len(reader.reading.children)


def test_a_file_of_sixty_megabytes_is_read(two_pages):
    """Case C38."""
    padded = two_pages.with_name("padded.pdf")
    with padded.open("wb") as file:
        body = two_pages.read_bytes()
        at = body.index(b"1 0 obj")
        file.write(body[:at] + (b"%" + b"x" * 1023 + b"\n") * 60_000 + body[at:])
    assert padded.stat().st_size > 60 * 10**6
    assert [page.verdict for page in read(padded, "padded.pdf").pages] == ["text", "text"]


def test_a_file_that_takes_too_long_is_read_as_far_as_it_got(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "DOCUMENT_S", 0.0)
    monkeypatch.setattr(limits, "PAGE_S", 0.0)
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]] * 60)
    document = read(path, "a.pdf")
    verdicts = [page.verdict for page in document.pages]
    assert len(verdicts) == 60
    assert verdicts[0] == "text"
    assert verdicts[-1] == "unreadable"


def test_too_many_pages_that_kill_a_child_end_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MOST_LOST_PAGES", 2)
    path = write_pdf(tmp_path / "a.pdf", [[(72, 700, f"{WORDS} {n}")] for n in range(400)])
    document = read(path, "a.pdf", on_page=lambda page, _: page.number % 5 or kill_children())
    assert len(document.pages) == 400
    assert document.pages[-1].verdict == "unreadable"


def test_many_threads_at_once_read_the_same(tmp_path):
    paths = [
        write_pdf(tmp_path / f"{n}.pdf", [[(72, 700, f"{WORDS} {n} {p}")] for p in range(4)])
        for n in range(4)
    ]
    alone = [read(path, "a.pdf") for path in paths]
    found: list[ReadDocument] = []

    def read_all(start):
        for n in range(4):
            document = read(paths[(start + n) % 4], "a.pdf")
            assert document == alone[(start + n) % 4]
            found.append(document)

    threads = [threading.Thread(target=read_all, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 64


@pytest.mark.skipif(sys.platform == "win32", reason="stops a child by a signal")
def test_a_silent_child_is_ended_and_the_file_called_damaged(two_pages, monkeypatch):
    read(two_pages, "a.pdf")
    monkeypatch.setattr("kvchat.documents.child.SILENCE_S", 0.2)
    for pid in children():
        os.kill(pid, signal.SIGSTOP)
    assert refused(two_pages) == "document_damaged"
    monkeypatch.undo()
    reader.reading.close()  # others are still held
    assert len(read(two_pages, "a.pdf").pages) == 2


def test_a_picture_is_a_png_of_the_width_asked_for(two_pages):
    png = page_image(two_pages, 2, width=300)
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 300
    # As wide as letter paper is to its height: 612 x 792 points.
    assert int.from_bytes(png[20:24], "big") == pytest.approx(300 * 792 / 612, abs=1)


def test_pictures_are_bounded_and_a_missing_page_is_said(tmp_path, two_pages):
    assert int.from_bytes(page_image(two_pages, 1, width=10**6)[16:20], "big") <= 2000
    long = tmp_path / "long.pdf"
    long.write_bytes(two_pages.read_bytes().replace(b"[0 0 612 792]", b"[0 0 2 14000]"))
    assert int.from_bytes(page_image(long, 1)[20:24], "big") <= 4000
    with pytest.raises(DocumentError):
        page_image(two_pages, 3)
    with pytest.raises(DocumentError):
        page_image(two_pages, 0)


def test_the_child_imports_nothing_heavy():
    code = (
        "import sys, kvchat.documents.reading_child; "
        "heavy = 'torch gradio transformers numpy docx lxml psutil'.split(); "
        "print([m for m in heavy if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_has_a_memory_limit_and_ends_with_its_parent(two_pages):
    child = Child()
    request = {
        "do": "read",
        "kind": "pdf",
        "path": str(two_pages),
        "password": None,
        "first": 0,
        "stop": 9,
    }
    assert len(list(child.ask(request))) == 3
    pid = child.pid
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max address space         1073741824" in limits
    child._running._popen.stdin.close()
    deadline = time.monotonic() + 10
    while child._running.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child._running.is_alive()
    child.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_page_ranges_are_short():
    assert page_ranges([5, 3, 6, 7, 6]) == "3, 5–7"
    assert page_ranges([1]) == "1"
