"""The citations of a turn: what was given with the question, and what of it the answer confirms.

The program cites, not the model: every page given is a citation, `matched` once a sentence of the
answer shares its numbers, names or a long run of words. A whole document cites its best pages, as
long as the model has it before it.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from kvchat.chat.attached import Attached
from kvchat.chat.shelf import Shelf
from kvchat.chat.sources import pages_brought
from kvchat.chat.suiting import page_passages
from kvchat.documents.asked_pages import asked_pages
from kvchat.documents.cite import Citation, best_pages, given, matched
from kvchat.documents.fence import PAGE_MARK, SUMMED
from kvchat.documents.passages import Passage, without
from kvchat.store.records import Attachment, Message

Cite = Callable[[str, Collection[str]], list[dict[str, Any]]]
"""From the answer so far and the turns left out to the citations."""


_MOST_NAMED = 8  # pages of a whole document that a question names and that are cited for it


def citer(question: Message, there: Attached, shelf: Shelf) -> Cite:
    """`question` with what the model is told of what came along with it; documents of `there` that
    are read whole are cited by the pages that suit it, or that it names.
    """
    asked = question.content
    whole = there.whole()
    passages: list[Passage] = []
    for came in question.attachments:
        if came.mode == "passages" and SUMMED.search(came.text):
            # the model read a summary, but what is cited is the page
            passages += page_passages(shelf, came.document, set(pages_brought(came)))
        elif came.mode == "passages" and PAGE_MARK.search(came.text):
            passages.append(_brought(came))
    names = {one.document: one.name for one in question.attachments}
    names |= {one.document: one.name for one in there.documents}
    documents = {
        sha: without(shelf.document(sha, names[sha]), there.left.get(sha, ()))
        for sha in {*(one.document for one in passages), *(one.document for one in whole)}
    }
    found = given(passages, names, documents)
    for one in whole:
        read = documents[one.document]
        pages = asked_pages(asked, [page.label for page in read.pages])
        if pages is not None and one.leading:
            wanted = page_passages(shelf, one.document, set(pages.pages[:_MOST_NAMED]))
            kept = [page for page in wanted if page.first_page not in there.left_of(one)]
            found += given(kept, names, documents)

    def cite(answer: str, left_out: Collection[str]) -> list[dict[str, Any]]:
        citations: list[Citation] = list(found)
        for one in whole:
            if one.leading or (one.turn is not None and one.turn not in left_out):
                best = best_pages(documents[one.document], asked, answer)
                known = {(other.document, other.page) for other in citations}
                citations.extend(page for page in best if (page.document, page.page) not in known)
        if answer:
            citations = matched(citations, answer)
        return [{"type": "citation", **asdict(citation)} for citation in citations]

    return cite


def _brought(attachment: Attachment) -> Passage:
    """The text that came along, by its page marks."""
    _, *parts = PAGE_MARK.split(attachment.text.rpartition("\n")[0])
    pages = [int(number) for number in parts[::2]]
    text, starts = "", []
    for page, part in zip(pages, parts[1::2], strict=True):
        starts.append((len(text), page))
        text += part
    return Passage(attachment.document, 0, pages[0], pages[-1], text, tuple(starts))
