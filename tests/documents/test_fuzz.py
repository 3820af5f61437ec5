"""Thousands of broken files: each is read or refused in time, and nothing is left behind.

Broken by fixed seeds, so that a fault comes again: bytes changed, cut out, doubled, swapped;
numbers made absurd; two files spliced. From small files of many kinds, made here and, where they
are, of the shared folder.
"""

import random
import re
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import docx
import psutil
import pytest

from kvchat.documents import limits
from kvchat.documents.reader import page_image, page_marks, read, reading
from kvchat.errors import DocumentError
from kvchat.units import MIB
from tests.conftest import REPO
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf

NUM_FILES, NUM_THREADS = 2400, 4
MOST_BYTES = 60_000
ABSURD = [b"0", b"-1", b"4294967296", b"99999999999", b"1e999", b"2147483647", b"(", b"<<", b">>"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    plain = write_pdf(folder / "plain.pdf", [[(72, 700, "words of a page")], [(9, 9, "more")]])
    made = [
        plain,
        write_pdf(folder / "turned.pdf", [[(72, 700, "turned")]], rotate=90, picture=True),
        write_pdf(folder / "labels.pdf", [[(72, 700, "x" * 80)]] * 3, first_label="/S /r"),
        lock(plain, "", owner="owner"),
    ]
    word = docx.Document()
    word.add_heading("Heading", 1)
    word.add_paragraph("A paragraph.")
    word.save(folder / "a.docx")
    (folder / "a.html").write_text("<html><body><p>one<table><tr><td>2</table></body></html>")
    (folder / "a.txt").write_text("plain text\fwith a page\n", encoding="utf-8")
    (folder / "k.txt").write_bytes("한글 텍스트 파일입니다".encode("cp949"))
    made += [folder / name for name in ("a.docx", "a.html", "a.txt", "k.txt")]
    shared = sorted((REPO.parent / "shared" / "pdfs").glob("*.pdf"))
    made += [path for path in shared if 0 < path.stat().st_size <= MOST_BYTES]
    return [(path.suffix, path.read_bytes()) for path in made]


def broken(raw, others, dice):
    body = bytearray(raw)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(max(len(body), 1))
        match dice.randrange(7):
            case 0:
                body[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del body[at : at + dice.randrange(1, 200)]
            case 2:
                body[at:at] = body[at : at + dice.randrange(1, 400)] * dice.choice((1, 2, 50))
            case 3:
                numbers = list(re.finditer(rb"\d+", bytes(body)))
                if numbers:
                    found = dice.choice(numbers)
                    body[found.start() : found.end()] = dice.choice(ABSURD)
            case 4:
                del body[at:]
            case 5:
                other = dice.choice(others)[1]
                start = dice.randrange(max(len(other), 1))
                body[at:at] = other[start : start + dice.randrange(1, 2000)]
            case _:
                size = dice.randrange(1, 64)
                body[at : at + size] = dice.randbytes(size)
    return bytes(body)


def broken_word(raw, dice, path):
    """A whole archive of broken parts; breaking the archive itself shows little."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        seed = path.with_suffix(".seed")
        seed.write_bytes(raw)
        with zipfile.ZipFile(seed) as archive:
            for name in archive.namelist():
                part = archive.read(name)
                out.writestr(
                    name, broken(part, [("", part)], dice) if dice.random() < 0.3 else part
                )


def written(seeds, number, folder):
    dice = random.Random(number)
    suffix, raw = seeds[number % len(seeds)]
    path = folder / f"broken{suffix}"
    if suffix == ".docx" and dice.random() < 0.7:
        broken_word(raw, dice, path)
    else:
        path.write_bytes(broken(raw, seeds, dice))
    return path, dice


def tried(path, dice):
    """'read' or the code of the refusal."""
    outcome = outcome_of(lambda: read(path, path.name))
    if path.suffix == ".pdf" and dice.random() < 0.2:
        page_marks(path, 1, ["words of a page"])
        drawn = outcome_of(lambda: page_image(path, 1, width=200))
        assert drawn in ("read", "document_no_picture", "document_picture_locked")
    return outcome


def outcome_of(call):
    try:
        call()
    except DocumentError as error:
        return error.code if error.line("en") and error.line("ko") else "untold"
    return "read"


def resident():
    return psutil.Process().memory_info().rss


@pytest.mark.timeout(1500)
def test_broken_files_are_read_or_refused_and_nothing_leaks(seeds, tmp_path):
    folders = [tmp_path / str(n) for n in range(NUM_THREADS)]
    for folder in folders:
        folder.mkdir()
    levels = []

    def part(first):
        found = Counter()
        for number in range(first, NUM_FILES, NUM_THREADS):
            found[tried(*written(seeds, number, folders[first]))] += 1
            if number >= NUM_FILES // 4 and number % 100 == 0:
                levels.append(resident())
        return found

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        outcomes = sum(threads.map(part, range(NUM_THREADS)), Counter())
    assert outcomes.total() == NUM_FILES
    assert outcomes["read"] > NUM_FILES / 5, outcomes
    assert outcomes["document_damaged"] > 20, outcomes
    assert len(outcomes) >= 6, outcomes
    assert "untold" not in outcomes
    # The program keeps nothing of a file, and each child stays far below its limit.
    assert levels[-1] < levels[0] + 20 * MIB, levels
    for pid in filter(None, (one.pid for one in reading.children)):
        assert psutil.Process(pid).memory_info().rss < limits.MEMORY_BYTES / 2
    # The pool is as it was: a good file is read.
    good = write_pdf(tmp_path / "good.pdf", [[(72, 700, "still here and well")]])
    assert read(good, "good.pdf").pages[0].text == "still here and well"
