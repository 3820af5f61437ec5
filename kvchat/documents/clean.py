"""Text of a PDF and names of files, made clean: what reaches index, prompt and screen.

Compatibility forms that only a typesetter meant (ligatures, full width, presentation forms) become
plain letters; those that carry meaning (10², 1½, ①, ㎏) stay. Knows no PDF and no page.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

HYPHEN_MARK = "\ufffe"
"""What PDFium writes for a hyphen at a line's end; `clean` keeps it, `join_hyphens` resolves it."""

DASHES = re.compile("[\u2010\u2011\u2212\ufe63\uff0d]")
# Letters in a typesetter's dress: digraphs, styled and Kangxi forms, ligatures, presentation forms,
# full and half width. Hangul compatibility letters (U+3131 on) must stay as they are.
_DRESSED = re.compile(
    "[\u0132\u0133\u017f\u01c4-\u01cc\u2e80-\u2fd5\uf900-\ufb4f\ufb50-\ufdff\ufe70-\ufefc"
    "\uff01-\uff9f\uffa1-\uffee\U0001d400-\U0001d7ff\U0002f800-\U0002fa1f]+"
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\uffff\U000f0000-\U0010ffff]"
)
_PLANE_ENDS = re.compile(
    "[" + "".join(chr(p << 16 | 0xFFFE) + chr(p << 16 | 0xFFFF) for p in range(1, 15)) + "]"
)
_BEYOND = re.compile("[\U00010000-\U0010ffff]")
_BLANKS = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r"\n{3,}")
# These two begin with a plain sign: then `re` skips what can be no beginning, four times as fast.
_LEADERS = re.compile(r"(?: [.·]|\.|·)(?: ?[.·]){3,} ?")
_LOOSE_ACCENT = re.compile("([\u00a8\u00b4\u02c6\u02c7\u02da\u02dc])(?<=[^\\W\\d_].)([^\\W\\d_])")
_COMBINING = dict(
    zip("\u00a8\u00b4\u02c6\u02c7\u02da\u02dc", "\u0308\u0301\u0302\u030c\u030a\u0303", strict=True)
)
_BROKEN = re.compile(f"([\\w-]*){HYPHEN_MARK}\\n?(\\w*)")
_WORD = re.compile(r"\w+(?:-\w+)*")

MAX_NAME = 120


def clean(text: str) -> str:
    """One page's text: lines ended by `\\n`, single blanks, no control or non-characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = _DRESSED.sub(lambda m: unicodedata.normalize("NFKC", m[0]), text)
        if _BEYOND.search(text):
            text = _PLANE_ENDS.sub("", text)
        text = unicodedata.normalize("NFC", DASHES.sub("-", text))
        text = _LOOSE_ACCENT.sub(_composed, text)
    text = _LEADERS.sub(" … ", _BLANKS.sub(" ", _UNSEEN.sub("", text)))
    lines = "\n".join(line.strip(" ") for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", lines).strip("\n")


def _composed(match: re.Match[str]) -> str:
    """TeX sets 'ä' as '¨a': one letter again where Unicode has it."""
    letter = unicodedata.normalize("NFC", match[2] + _COMBINING[match[1]])
    return letter if len(letter) == 1 else match[0]


def join_hyphens(pages: Iterable[str]) -> list[str]:
    """Resolves hyphens at line ends over a whole document.

    'com-/piler' is one word; 'non-/ASCII' keeps its hyphen. Told apart by the document's own words,
    and where those are silent, by what follows: a capital or a digit keeps the hyphen.
    """
    texts = list(pages)
    if not any(HYPHEN_MARK in text for text in texts):
        return texts
    unbroken = (_BROKEN.sub(" ", text) for text in texts)
    known = Counter(word.lower() for text in unbroken for word in _WORD.findall(text))

    def joined(match: re.Match[str]) -> str:
        left, right = match[1], match[2]
        if not left or not right:
            return f"{left}-{right}" if left or right else ""
        return left + ("-" if _keeps_hyphen(left, right, known) else "") + right

    return [_BROKEN.sub(joined, text) for text in texts]


def _keeps_hyphen(left: str, right: str, known: Counter[str]) -> bool:
    whole, parted = known[(left + right).lower()], known[f"{left}-{right}".lower()]
    if whole != parted:
        return parted > whole
    if not right[0].islower() or left[-1].isdigit() or left.isupper():
        return True
    # 'architecture-independent': both halves stand alone in this document, the whole never does.
    return min(len(left), len(right)) >= 4 and known[left.lower()] > 0 and known[right.lower()] > 0


def clean_name(name: str) -> str:
    """A file's name as it may be shown and stored: last part, NFC, one line, bounded, never empty.

    The ending survives the bound. Nothing here makes a path of it.
    """
    text = unicodedata.normalize("NFC", name).replace("\\", "/").rstrip("/").rpartition("/")[2]
    text = "".join(" " if c.isspace() else c for c in text if c.isspace() or _shown(c))
    text = " ".join(text.split()).strip(". ") if set(text) <= set(". ") else " ".join(text.split())
    if len(text) > MAX_NAME:
        stem, dot, ending = text.rpartition(".")
        ending = dot + ending if 0 < len(ending) <= 8 and stem else ""
        text = text[: MAX_NAME - 1 - len(ending)] + "…" + ending
    return text or "document.pdf"


def _shown(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
