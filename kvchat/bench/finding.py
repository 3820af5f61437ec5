"""`bench documents`, its retrieval part: whether the page that answers a question is among those
that the search brings, on a folder of documents with a table of questions.

The table has a line a question, tab-separated, with the columns `file`, `question` and
`pdf_page_1based` (several with `|`; empty where the document does not have the answer, so that
bringing nothing is right). Each question is asked of its own file, and of all files together.
"""

import csv
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.documents.passages import Passage, split
from kvchat.documents.reader import ReadDocument, read
from kvchat.documents.retrieve import Index, Scored
from kvchat.errors import DocumentError, SettingsError

TABLE = "QA.tsv"
K = 5
_HANGUL = re.compile("[가-힣]")


@dataclass(frozen=True, slots=True)
class Asked:
    """`pages`: those that answer it, counted from 1; none where nothing should be found."""

    name: str
    file: str
    text: str
    pages: frozenset[int]

    @property
    def language(self) -> str:
        return "ko" if _HANGUL.search(self.text) else "en"


@dataclass(frozen=True, slots=True)
class Found:
    """`rank`: of the first passage with a page that answers, of the right file; None for none."""

    asked: Asked
    rank: int | None
    num_passages: int
    s: float


def questions(table: Path) -> list[Asked]:
    """Raises OSError."""
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Asked(
            row.get("id") or str(number),
            row["file"],
            row["question"],
            frozenset(int(page) for page in row["pdf_page_1based"].split("|") if page.strip()),
        )
        for number, row in enumerate(rows, 1)
    ]


def of_folder(folder: Path | None, count_tokens: Callable[[str], int]) -> Iterator[dict[str, Any]]:
    """Files of the table that cannot be read are passed over, with their questions. Raises
    SettingsError where there is no table, or none of its files can be read.
    """
    table = None if folder is None else folder / TABLE
    if folder is None or table is None or not table.is_file():
        raise SettingsError("bench_documents", table=TABLE)
    asked = questions(table)
    documents = {}
    for name in dict.fromkeys(one.file for one in asked):
        with suppress(DocumentError):
            documents[name] = read(folder / name, name)
    if not documents:
        raise SettingsError("bench_documents", table=TABLE)
    yield from measured(asked, documents, count_tokens)


def measured(
    asked: Sequence[Asked],
    documents: Mapping[str, ReadDocument],
    count_tokens: Callable[[str], int],
) -> Iterator[dict[str, Any]]:
    """A row for each language, alone and among all documents. `documents` by file name."""
    passages = {name: split(one, count_tokens) for name, one in documents.items()}
    alone = {name: Index(those) for name, those in passages.items()}
    together = Index([one for those in passages.values() for one in those])
    there = [one for one in asked if one.file in documents]
    for among, index_of in (("alone", alone.__getitem__), ("together", lambda _: together)):
        found = [_found(one, index_of(one.file), documents[one.file]) for one in there]
        for language in sorted({one.asked.language for one in found}):
            yield _row(among, language, [one for one in found if one.asked.language == language])


def _found(asked: Asked, index: Index, document: ReadDocument) -> Found:
    began = time.perf_counter()
    scored = index.search(asked.text, K)
    took_s = time.perf_counter() - began
    return Found(asked, rank_of(asked, scored, document.sha256), len(scored), took_s)


def rank_of(asked: Asked, scored: Sequence[Scored], document: str) -> int | None:
    for rank, one in enumerate(scored, 1):
        if one.passage.document == document and asked.pages & _pages(one.passage):
            return rank
    return None


def _pages(passage: Passage) -> set[int]:
    return {page for page, text in passage.parts() if text}


def _row(among: str, language: str, found: Sequence[Found]) -> dict[str, Any]:
    answerable = [one for one in found if one.asked.pages]
    others = [one for one in found if not one.asked.pages]
    return {
        "name": "documents",
        "part": "finding",
        "among": among,
        "language": language,
        "k": K,
        "questions": len(answerable),
        "hits": sum(one.rank is not None for one in answerable),
        "mrr": round(statistics.fmean([1 / one.rank if one.rank else 0.0 for one in answerable]), 3)
        if answerable
        else None,
        "unanswerable": len(others),
        "refused": sum(not one.num_passages for one in others),
        "ms": round(1000 * statistics.median(one.s for one in found), 2),
        "missed": [one.asked.name for one in answerable if one.rank is None],
        "brought": [one.asked.name for one in others if one.num_passages],
    }
