"""The citations of a turn: what was given with the question, and what of it the answer confirms.

The program cites, not the model: every page given is a citation, `matched` once a sentence of the
answer shares its numbers, names or a long run of words. A whole document cites its best pages, as
long as the model has it before it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from kvchat.chat.shelf import Shelf
from kvchat.documents.cite import Citation, best_pages, given, matched
from kvchat.documents.fence import PAGE_MARK
from kvchat.documents.passages import Passage
from kvchat.store.records import Attachment, ChatDocument

Cite = Callable[[str, Collection[str]], list[dict[str, Any]]]
"""From the answer so far and the turns left out to the citations."""


def citer(
    attachments: Sequence[Attachment], whole: Sequence[ChatDocument], question: str, shelf: Shelf
) -> Cite:
    """`attachments` came with the question; `whole` are the documents that are read whole."""
    passages = [
        _brought(one) for one in attachments if one.mode == "passages" and "[page " in one.text
    ]
    names = {one.document: one.name for one in attachments}
    names |= {one.document: one.name for one in whole}
    documents = {sha: shelf.document(sha, name) for sha, name in names.items()}
    found = given(passages, names, documents)

    def cite(answer: str, left_out: Collection[str]) -> list[dict[str, Any]]:
        citations: list[Citation] = list(found)
        for one in whole:
            if one.leading or (one.turn is not None and one.turn not in left_out):
                citations.extend(best_pages(documents[one.document], question, answer))
        if answer:
            citations = matched(citations, answer)
        return [{"type": "citation", **asdict(citation)} for citation in citations]

    return cite


def pages_brought(attachment: Attachment) -> list[int]:
    """The pages of which text came along."""
    return [int(number) for number in PAGE_MARK.findall(attachment.text)]


def _brought(attachment: Attachment) -> Passage:
    """The text that came along, by its page marks."""
    _, *parts = PAGE_MARK.split(attachment.text.rpartition("\n")[0])
    pages = [int(number) for number in parts[::2]]
    text, starts = "", []
    for page, part in zip(pages, parts[1::2], strict=True):
        starts.append((len(text), page))
        text += part
    return Passage(attachment.document, 0, pages[0], pages[-1], text, tuple(starts))
