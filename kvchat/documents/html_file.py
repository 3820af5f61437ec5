"""HTML: what a person would read of a page, without running or fetching anything.

Runs in the child process only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvchat.documents.divide import Piece
from kvchat.documents.refused import Refused
from kvchat.documents.text_file import encoding_of

_DECLARED = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w-]{2,30})""", re.IGNORECASE)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_SILENT = frozenset(("script", "style", "template", "noscript", "svg", "head", "object", "iframe"))
_BLOCKS = _HEADINGS | frozenset(
    ("p", "div", "section", "article", "header", "footer", "nav", "aside", "main", "ul", "ol", "li",
     "dl", "dt", "dd", "table", "tr", "caption", "blockquote", "pre", "figure", "figcaption", "hr",
     "form", "fieldset", "address", "details", "summary", "br", "body", "title")
)  # fmt: skip
_HIDING = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d])|opacity\s*:\s*0(?![.\d])",
    re.IGNORECASE,
)


@dataclass(slots=True)
class HtmlText:
    """`hidden`: the parts that a browser would not show; they are among the pieces too."""

    pieces: list[Piece] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def html_text(raw: bytes) -> HtmlText:
    """Raises Refused: damaged."""
    from lxml import etree, html

    parser = html.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True
    )
    # Python knows more encodings than the parser does.
    text = raw.decode(_encoding(raw), "replace").encode("utf-8", "replace")
    try:
        root = html.document_fromstring(text, parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError, AssertionError):
        raise Refused("damaged") from None
    found = HtmlText()
    for title in root.iterfind("head/title"):
        _Walk(found).close(title.text or "", "heading")
    _Walk(found).through(root)
    return found


def _encoding(raw: bytes) -> str:
    """What the file declares, if Python knows it; else as for plain text."""
    declared = _DECLARED.search(raw[:4096])
    if declared and not raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        name = declared[1].decode("ascii").lower()
        name = "cp949" if name in ("euc-kr", "ks_c_5601-1987", "korean") else name
        try:
            raw[:4096].decode(name, "replace")
        except LookupError:
            pass
        else:
            return name
    found = encoding_of(raw)
    return "utf-8" if found == "utf-8-sig" else found


class _Walk:
    """One pass over a tree of any depth, without recursion."""

    def __init__(self, found: HtmlText) -> None:
        self._found = found
        self._line: list[str] = []
        self._hidden_depth = 0
        self._pre_depth = 0
        self._kind: Any = "text"

    def through(self, root: Any) -> None:
        stack: list[tuple[Any, Iterator[Any]]] = []
        self._open(root)
        stack.append((root, iter(root)))
        while stack:
            element, children = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                self._leave(element)
                if stack:
                    self._say(element.tail)
            elif not isinstance(child.tag, str) or child.tag in _SILENT:
                self._say(child.tail)
            else:
                self._open(child)
                stack.append((child, iter(child)))
        self._end_line()

    def _open(self, element: Any) -> None:
        tag = element.tag
        if tag in _BLOCKS:
            self._end_line()
            self._kind = "heading" if tag in _HEADINGS else "text"
        elif tag in ("td", "th") and self._line:
            self._line.append(" | ")
        self._hidden_depth += _is_hiding(element)
        self._pre_depth += tag == "pre"
        if tag == "img":
            self._say(element.get("alt"))
        elif tag in ("input", "textarea") and element.get("type") not in ("hidden", "password"):
            self._say(element.get("value"))
        self._say(element.text)

    def _leave(self, element: Any) -> None:
        if element.tag in _BLOCKS:
            self._end_line()
            self._kind = "text"
        self._hidden_depth -= _is_hiding(element)
        self._pre_depth -= element.tag == "pre"

    def _say(self, text: str | None) -> None:
        if not text:
            return
        if self._hidden_depth and text.strip():
            self._found.hidden.append(text)
        if self._pre_depth:
            *lines, last = text.split("\n")
            for line in lines:
                self._line.append(line)
                self._end_line()
            self._line.append(last)
        else:
            self._line.append(re.sub(r"\s+", " ", text))

    def _end_line(self) -> None:
        self.close("".join(self._line), self._kind)
        self._line = []

    def close(self, text: str, kind: Any) -> None:
        shown = text.rstrip() if self._pre_depth else " ".join(text.split())
        if shown.strip(" |"):
            self._found.pieces.append(Piece(shown, kind))


def _is_hiding(element: Any) -> bool:
    return element.get("hidden") is not None or bool(_HIDING.search(element.get("style") or ""))
