"""What a question is to be searched by: its own words, and those of what it follows on.

"And in the second one?", "what about Korea?", "그건 왜?", "한국은요?" say too little alone: the
questions before them are searched with them, and the names in the last reply, which "he" or "거기"
may mean. Own words count more (see `Index.search`). Knows no document's text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.documents.clean import clean_name
from kvchat.documents.terms import asked_terms, fold, is_cjk, points_back

MOST_BACK = 3  # questions that may lean on each other
_MOST_NAMES = 3
_NAME = re.compile(r"\b[A-Z][\w'’]+(?:\s+[A-Z][\w'’]+)+|(?<=[a-z,;] )[A-Z][\w'’]+|\b[A-Z]{2,}\w*")
_ORDINALS = (
    re.compile(r"\b(?:1st|first)\b|첫\s?번째|첫째|1번"),
    re.compile(r"\b(?:2nd|second)\b|두\s?번째|둘째|2번"),
    re.compile(r"\b(?:3rd|third)\b|세\s?번째|셋째|3번"),
    re.compile(r"\b(?:4th|fourth)\b|네\s?번째|넷째|4번"),
)
_OF_DOCUMENTS = re.compile(
    r"\b(?:one|document|doc|file|pdf|paper)s?\b|번째(?:는|은|도|에|에서|의)?\s*[?？]?$|문서|파일|논문"
)
_LAST = re.compile(r"\b(?:last|latter)\s+(?:one|document|file|pdf)\b|마지막\s*(?:문서|파일)")
_LEAST_STEM = 3


@dataclass(frozen=True, slots=True)
class Query:
    """`context`: text that the question leans on; empty where it stands alone."""

    text: str
    context: str = ""


def resolved(question: str, earlier_questions: Sequence[str], last_reply: str = "") -> Query:
    """`earlier_questions`: oldest first, of the branch that is shown."""
    if not earlier_questions or not points_back(question):
        return Query(question)
    leaned_on = [earlier_questions[-1]]
    for before in reversed(earlier_questions[-MOST_BACK:-1]):
        if not points_back(leaned_on[0]):
            break
        leaned_on.insert(0, before)
    names = list(dict.fromkeys(_NAME.findall(last_reply)))[:_MOST_NAMES]
    return Query(question, " ".join([*leaned_on, *names]))


def meant_documents(question: str, names: Sequence[str]) -> list[int]:
    """Places of the documents that a question names, by file name or order ("the second one");
    all where it names none.
    """
    everything = list(range(len(names)))
    if len(names) < 2:
        return everything
    asked = fold(question)
    named = [n for n, name in enumerate(names) if _is_named(name, asked)]
    if named:
        return named
    if _OF_DOCUMENTS.search(asked):
        for place, pattern in enumerate(_ORDINALS[: len(names)]):
            if pattern.search(asked):
                return [place]
        if _LAST.search(asked):
            return [len(names) - 1]
    return everything


_ORDINAL_PHRASE = re.compile(
    r"\b(?:the\s+)?(?:first|second|third|fourth|last|latter|other)\s+(?:one|document|doc|file|pdf)\b"
    r"|(?:(?:첫|두|세|네)\s?번째|(?:첫|둘|셋|넷)째|(?:다음|마지막)(?=\s*(?:문서|파일)))"
    r"\s*(?:문서|파일)?(?:에서는|에는|에서|은|는|도|의|에)?",
    re.IGNORECASE,
)


def without_documents(query: Query, names: Sequence[str]) -> Query:
    """The query without the words that only say which document is meant."""
    wholes = [re.escape(clean_name(name)) for name in names]
    stems = [re.escape(clean_name(name).rpartition(".")[0] or name) for name in names]
    said = re.compile("|".join(sorted([*wholes, *stems], key=len, reverse=True)), re.IGNORECASE)

    def bare(text: str) -> str:
        kept = _ORDINAL_PHRASE.sub(" ", said.sub(" ", text) if names else text)
        return kept if has_own_words(kept) else text

    context = bare(query.context)
    own = _ORDINAL_PHRASE.sub(" ", said.sub(" ", query.text) if names else query.text)
    text = own if has_own_words(own) or context else query.text
    return Query(text, context)


def _is_named(name: str, asked: str) -> bool:
    """The whole name, or its stem where that is no word of the question by chance."""
    whole = fold(clean_name(name))
    if whole in asked:
        return True
    stem = whole.rpartition(".")[0]
    if len(stem) < _LEAST_STEM or not re.search(r"[\W_\d]", stem):
        # one plain word ("report", "보고서") is a file only where it is said to be one
        said = re.escape(stem)
        kinds = r"\s*(?:document|file|pdf|문서|파일)"
        return len(stem) >= 2 and bool(re.search(rf"(?<!\w){said}{kinds}", asked))
    after = "" if is_cjk(stem[-1]) else r"(?![a-z0-9])"
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(stem)}{after}", asked))


def has_own_words(question: str) -> bool:
    return bool(asked_terms(question))
