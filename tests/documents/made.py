"""Documents made of plain strings, as if they had been read."""

from kvchat.documents.reader import Page, ReadDocument


def document(*texts: str, sha: str = "a" * 64, name: str = "a.pdf", labels=None) -> ReadDocument:
    """One page a text; a page without text is a scan. `labels`: the printed labels."""
    labels = labels or [None] * len(texts)
    pages = [
        Page(number, label, text, "text" if text else "scan")
        for number, (text, label) in enumerate(zip(texts, labels, strict=True), 1)
    ]
    return ReadDocument(sha, name, tuple(pages))


def count_words(text: str) -> int:
    return len(text.split())
