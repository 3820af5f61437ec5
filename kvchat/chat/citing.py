"""The citations of a turn: what was given with the question, and what of it the answer confirms.

The program cites, not the model: every passage given is a citation, `matched` once a sentence of
the answer shares its numbers, names or a long run of words. A whole document cites its best pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from kvchat.chat.shelf import Shelf
from kvchat.documents.cite import Citation, best_pages, given, matched
from kvchat.store.records import Attachment


def citer(
    attachments: Sequence[Attachment],
    whole: Sequence[tuple[str, str]],
    question: str,
    shelf: Shelf,
) -> Callable[[str], list[dict[str, Any]]]:
    """A function from the answer so far to its citations. `whole`: (hash, name) of documents read
    whole.
    """
    names = {one.document: one.name for one in attachments} | dict(whole)
    passages = [
        shelf.passages(one.document)[place]
        for one in attachments
        if one.mode == "passages"
        for place in one.passages
    ]
    documents = {sha: shelf.document(sha) for sha in names}
    found = given(passages, names, documents)

    def cite(answer: str) -> list[dict[str, Any]]:
        citations: list[Citation] = list(found)
        for sha, _ in whole:
            citations.extend(best_pages(documents[sha], question, answer))
        if answer:
            citations = matched(citations, answer)
        return [{"type": "citation", **asdict(citation)} for citation in citations]

    return cite
