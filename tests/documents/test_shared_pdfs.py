"""Real files of many origins: each ends as INDEX.tsv says, quickly and with its facts."""

import csv
import re
import threading
import time

import psutil
import pytest

from kvchat.documents.clean import clean
from kvchat.documents.reader import notes, page_image, read, reading
from kvchat.errors import DocumentError
from kvchat.units import MIB

REFUSED = {
    "ar-thuluth-garbage.pdf": "document_unreadable",
    "bad-poppler-395.pdf": "document_no_pages",
    "bad-poppler-85140.pdf": "document_blank",
    "bad-redhat.pdf": "document_damaged",
    "bad-tiny-187b.pdf": "document_damaged",
    "derived/html-named-as.pdf": "document_not_pdf",
    "derived/truncated-fhs-60pct.pdf": "document_damaged",
    "derived/zero-pages.pdf": "document_no_pages",
    "empty-0bytes.pdf": "document_empty",
    "empty-blank-page.pdf": "document_blank",
    "enc-sechandler.pdf": "document_blank",
    "enc-user-aes128-asdfzxcv.pdf": "document_encrypted",
    "enc-user-issue15893.pdf": "document_encrypted",
    "enc-user-openpassword.pdf": "document_encrypted",
    "enc-user-test_user.pdf": "document_encrypted",
    "huge-patchelf-3146x1529.pdf": "document_blank",
    "notext-11-labelled.pdf": "document_blank",
    "scan-bad-ccitt.pdf": "document_scan",
    "tiny-3.84pt-6p.pdf": "document_scan",
}
UNTOLD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u2011\ufffe\uffff\ue000-\uf8ff]")


@pytest.fixture(scope="module")
def rows(shared_pdfs):
    with (shared_pdfs / "INDEX.tsv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row for row in found if (shared_pdfs / row["file"]).exists()]


@pytest.fixture(scope="module")
def documents(rows, shared_document):
    """Every file that can be read, by name; the others have been seen to be refused."""
    found, codes = {}, {}
    for row in rows:
        started = time.monotonic()
        try:
            found[row["file"]] = shared_document(row["file"])
        except DocumentError as error:
            codes[row["file"]] = error.code
        assert time.monotonic() - started < 100, row["file"]  # 10 s on a machine that is not shared
    assert codes == {name: code for name, code in REFUSED.items() if name in codes or name in found}
    return found


def plain(text):
    """Without blanks, quotes and hyphens, which differ between extractors."""
    return re.sub(r"[\s\-−–’‘“”'\"]", "", clean(text))


def test_no_file_takes_a_gibibyte(documents):
    """Each child that read them may have no more address space; and it is far from it."""
    for child in reading.children:
        if child.pid is not None:
            assert psutil.Process(child.pid).memory_info().rss < 400 * MIB


def test_every_file_is_read_or_refused_in_one_sentence(documents, rows):
    assert len(documents) + len(REFUSED) >= len(rows) > 50


def test_page_numbers_are_those_of_the_file(documents, rows):
    for row in rows:
        if row["file"] in documents and row["pages"].isdigit():
            pages = documents[row["file"]].pages
            assert [page.number for page in pages] == list(range(1, int(row["pages"]) + 1))


def test_recorded_facts_are_found_on_their_pages(documents, rows):
    missing, checked = [], 0
    for row in rows:
        if row["file"] not in documents or row["file"] in ARABIC:
            continue
        pages = documents[row["file"]].pages
        for number, fact in re.findall(r"p(\d+): (.*?)(?: ;;|$)", row[FACTS]):
            fact = re.sub(r" \(also p\.\[.*", "", fact)
            checked += 1
            if plain(fact) not in plain(pages[int(number) - 1].text):
                missing.append((row["file"], number, fact))
    assert checked > 100
    assert missing == []


FACTS = "facts_checked_in_both(p=1-based PDF page)"
ARABIC = ("ar-habibi.pdf", "ar-habibi-rotated.pdf")  # one of three words has no map to letters


def test_texts_are_clean(documents):
    for name, document in documents.items():
        for page in document.pages:
            assert not UNTOLD.search(page.text), (name, page.number)


def test_sentences_of_three_columns_are_whole(documents):
    pages = documents["long-irs-i1040nr-2007.pdf"].pages
    flat = [page.text.replace("\n", " ") for page in pages]
    assert "Deduction for educator expenses in figuring adjusted gross income." in flat[0]
    assert "subject to a 4% tax on U.S. source gross transportation income that is not" in flat[21]
    federal = documents["col3-federal-register.pdf"].pages[3].text.replace("\n", " ")
    assert "To ensure that each airplane’s two" in federal


def test_words_broken_at_line_ends_are_whole_again(documents):
    manual = " ".join(page.text for page in documents["long-bash-manpage.pdf"].pages)
    assert "extended debugging mode" in manual
    faq = documents["long-r-faq.pdf"]
    assert "universität" in " ".join(page.text for page in faq.pages)
    assert "sendmail-compatible" in documents["long-fhs-3.0.pdf"].pages[26].text


@pytest.mark.parametrize("name", ["tab-nics.pdf", "rot-nics-rotated.pdf"])
def test_a_table_keeps_its_rows(documents, name):
    text = documents[name].pages[0].text
    assert re.search(r"^Alabama [\d,]+ [\d,]+ [\d,]+", text, re.MULTILINE)
    assert "\nGuam 0 100 55 12 3 0 0 0 0 1 0" in text  # they add up to 171


def test_printed_labels_are_known(documents):
    assert documents["long-fhs-3.0.pdf"].pages[20].label == "14"
    assert [p.label for p in documents["labels-pagelabels.pdf"].pages] == [
        "iii",
        "iv",
        "1",
        "2",
        "1",
    ]


def test_values_typed_into_a_form_are_read(documents):
    assert "Multiline: Lorem ipsum" in documents["form-text-widget.pdf"].pages[0].text


def test_the_same_bytes_have_one_name(documents):
    twin = documents["derived/duplicate-other-name.pdf"].sha256
    assert twin == documents["small-minimal.pdf"].sha256


def test_passwords_open_and_wrong_ones_are_said(shared_pdfs, rows):
    for row in rows:
        if row["password"] and row["file"] in REFUSED:
            path = shared_pdfs / row["file"]
            assert read(path, "a.pdf", password=row["password"]).pages[0].text
            with pytest.raises(DocumentError) as caught:
                read(path, "a.pdf", password="not this one")
            assert caught.value.code == "document_password"
            assert "not this one" not in str(caught.value)


def test_verdicts_say_what_a_page_is(documents):
    found = {name: {page.verdict for page in one.pages} for name, one in documents.items()}
    told = {"scan-ocr-vicksburg.pdf": {"hidden"}, "font-rtl-hello.pdf": {"form"}}
    told |= {"form-text-widget.pdf": {"form"}, "form-acrobat-1040.pdf": {"form", "text"}}
    # Some of its pages are drawings with a printer's line that is off the page.
    told |= {"col3-federal-register.pdf": {"text", "hidden"}}
    for name, verdicts in found.items():
        assert verdicts == told.get(name, {"text"}), name


def test_a_layer_over_a_scan_and_files_inside_are_told(documents):
    assert notes(documents["scan-ocr-vicksburg.pdf"]) == [
        ("document.pages_text_layer", {"pages": "1–6"})
    ]
    assert notes(documents["long-irs-i1040nr-2007.pdf"]) == [
        ("document.attachments", {"names": "Press(LEGAL).joboptions"})
    ]
    assert notes(documents["long-fhs-3.0.pdf"]) == []


def test_sixteen_at_once_give_the_same_text_as_one_at_a_time(documents, shared_pdfs):
    """Case C45."""
    names = sorted(documents, key=lambda name: (shared_pdfs / name).stat().st_size)[:8]
    found = []

    def read_all(first):
        for name in (*names[first % 8 :], *names[: first % 8]):
            found.append(read(shared_pdfs / name, name) == documents[name])

    threads = [threading.Thread(target=read_all, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 128


@pytest.mark.parametrize("name", ["bomb-jbig2-giant.pdf", "bad-poppler-85140.pdf"])
def test_pictures_of_bombs_and_giants_stay_small(shared_pdfs, name):
    started = time.monotonic()
    png = page_image(shared_pdfs / name, 1)
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert width * height <= 4_100_000
    assert height <= 4000
    assert time.monotonic() - started < 10
