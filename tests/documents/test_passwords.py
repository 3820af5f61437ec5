"""Locked files: every way in which a password may have been written down, and no trace of it."""

import unicodedata

import pytest

from kvchat.documents.pdf_open import saslprep, spellings
from kvchat.documents.reader import page_image, read
from kvchat.errors import DocumentError
from tests.documents.locked import lock
from tests.documents.small_pdf import write_pdf

WORDS = "the text of a locked file that is long enough"
HANGUL = "비밀 번호 7"


@pytest.fixture
def plain(tmp_path):
    return write_pdf(tmp_path / "a.pdf", [[(72, 700, WORDS)]])


def code_of(path, password=None):
    with pytest.raises(DocumentError) as caught:
        read(path, "a.pdf", password=password)
    for lang in ("en", "ko"):
        assert not password or password not in caught.value.line(lang)
    return caught.value.code


@pytest.mark.parametrize("revision", [3, 4, 6])
def test_a_locked_file_asks_says_that_it_was_wrong_and_opens(plain, revision):
    path = lock(plain, "Secret 1", revision=revision)
    assert code_of(path) == "document_encrypted"
    assert code_of(path, "secret 1") == "document_password"
    assert read(path, "a.pdf", password="Secret 1").pages[0].text == WORDS
    assert page_image(path, 1, width=50, password="Secret 1").startswith(b"\x89PNG")
    with pytest.raises(DocumentError) as caught:
        page_image(path, 1)
    assert caught.value.code == "document_picture_locked"


@pytest.mark.parametrize("locked_as", ["NFC", "NFD"])
@pytest.mark.parametrize("typed_as", ["NFC", "NFD"])
def test_hangul_opens_however_it_was_typed(plain, locked_as, typed_as):
    path = lock(plain, unicodedata.normalize(locked_as, HANGUL))
    typed = unicodedata.normalize(typed_as, HANGUL)
    assert read(path, "a.pdf", password=typed).pages[0].text == WORDS


def test_a_file_locked_as_the_standard_says_opens_as_it_was_typed(plain):
    path = lock(plain, "IX 9")
    assert read(path, "a.pdf", password="Ⅸ\u00a0\u00ad9").pages[0].text == WORDS


def test_owner_only_files_open_without_asking_and_with_any_password(plain):
    path = lock(plain, "", owner="nobody knows")
    assert read(path, "a.pdf").pages[0].text == WORDS
    assert read(path, "a.pdf", password="whatever").pages[0].text == WORDS


def test_spellings_are_those_that_programs_use():
    assert saslprep("a\u00adb\u00a0Ⅸ") == "ab IX"
    assert spellings("") == []
    assert spellings("plain") == [b"plain"]
    found = spellings(HANGUL)
    assert found[0] == HANGUL.encode()
    assert HANGUL.encode("cp949") in found
    assert unicodedata.normalize("NFD", HANGUL).encode() in found
    assert "pässword".encode("latin-1") in spellings("pässword")
    assert all(b"\0" not in one for one in spellings("a\0b"))
