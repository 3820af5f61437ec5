import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.documents.clean import HYPHEN_MARK, MAX_NAME, clean, clean_name, join_hyphens


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        ("o\ufb03ce e\ufb03cient \ufb01le", "office efficient file"),
        ("cdrom\u2011detect \u2212o", "cdrom-detect -o"),
        ("ＡＢＣ １２３ ｶﾞ", "ABC 123 ガ"),
        ("\ufee3\ufeae\ufea3\ufe92\ufe8e", "مرحبا"),
        ("⽇本 ⽂書", "日本 文書"),
        ("e\u0301 Universit\u00a8at", "é Universität"),
        ("10² and 1½ and ① stay, x\u2081 too", "10² and 1½ and ① stay, x\u2081 too"),
        ("ㄱ은 기역", "ㄱ은 기역"),
        ("a\x00b\x02c\xadd\ufeffe\u202ef\uf8f4g\ufdd0h\U0001fffei", "abcdefghi"),
        ("one\r\ntwo\rthree\n\n\n\n four \t five ", "one\ntwo\nthree\n\nfour five"),
        ("Purpose . . . . . . . . . 14", "Purpose … 14"),
        ("wait... what", "wait... what"),
        ("👨\u200d👩\u200d👧 می\u200cخواهم", "👨\u200d👩\u200d👧 می\u200cخواهم"),
    ],
)
def test_text_is_made_plain_without_changing_what_it_says(raw, right):
    assert clean(raw) == right


@given(st.text(max_size=200))
def test_no_control_or_noncharacter_survives(text):
    left = clean(text).replace("\n", "").replace(HYPHEN_MARK, "")
    bad = [c for c in left if unicodedata.category(c) in ("Cc", "Co", "Cs")]
    assert not bad
    assert not any(ord(c) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(c) <= 0xFDEF for c in left)
    assert not set(left) & set("\u00ad\u2011\ufeff\u202e")


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        ("the com\ufffepiler", "the compiler"),
        ("adip\ufffe\niscing elit", "adipiscing elit"),
        ("non\ufffeASCII text", "non-ASCII text"),
        ("FHS\ufffecompliant", "FHS-compliant"),
        ("the first\ufffeclass seat, a first-class one", "the first-class seat, a first-class one"),
        ("data\ufffebase and one database", "database and one database"),
        ("sendmail\ufffecompatible sendmail compatible", "sendmail-compatible sendmail compatible"),
        ("\ufffe left alone", "left alone"),
        ("a page's end\ufffe", "a page's end-"),
    ],
)  # fmt: skip
def test_hyphens_at_line_ends_are_joined_or_kept(raw, right):
    assert join_hyphens([raw])[0].strip() == right


def test_other_pages_tell_whether_a_hyphen_is_real():
    pages = ["run\ufffetime file", "run-time data", "no hyphen here"]
    assert join_hyphens(pages) == ["run-time file", "run-time data", "no hyphen here"]


def test_halves_of_broken_words_are_not_taken_for_words():
    broken = "accord\ufffeingly and accord\ufffeingly"
    assert join_hyphens([broken]) == ["accordingly and accordingly"]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\x\\보고서.pdf", "보고서.pdf"),
        (unicodedata.normalize("NFD", "보고서.pdf"), "보고서.pdf"),
        ("a\nb\r\tc\x00\x1b[31m.pdf", "a b c[31m.pdf"),
        ("good\u202efdp.exe", "goodfdp.exe"),
        ("  spaced   out .pdf ", "spaced out .pdf"),
        ("", "document.pdf"),
        ("...", "document.pdf"),
        ("///", "document.pdf"),
        (".pdf", ".pdf"),
        ("<img src=x onerror=1>.pdf", "<img src=x onerror=1>.pdf"),
    ],
)
def test_file_names_become_one_short_line(name, right):
    assert clean_name(name) == right


def test_a_long_name_keeps_its_ending():
    short = clean_name("가" * 500 + ".pdf")
    assert len(short) == MAX_NAME
    assert short.endswith("….pdf")


@given(st.text(max_size=300))
def test_any_name_is_safe_to_show(name):
    shown = clean_name(name)
    assert 0 < len(shown) <= MAX_NAME
    assert shown.isprintable()
    assert "/" not in shown
    assert "\\" not in shown
    assert clean_name(shown) == shown
