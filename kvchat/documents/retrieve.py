"""Which passages suit a question: BM25 over terms that serve Korean, Chinese and Japanese too.

Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009). What shares
too little of the question is left out: small talk and questions about something else bring nothing.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from kvchat.documents.contents import is_contents
from kvchat.documents.passages import Passage
from kvchat.documents.terms import (
    asked_terms,
    asks_for_overview,
    is_cjk,
    soft_terms,
    terms,
)

_K1, _B = 1.2, 0.75
_LEAST_OF_BEST = 0.5
"""A passage whose score is below this part of the best one's is left out."""
_CONTENTS_WORTH = 0.5
"""Of the score of a table of contents: what it names is said elsewhere."""
_CONTEXT_WEIGHT = 0.5
_LEAST_WITHOUT_A_NAME = 0.6
"""Of the words of a question about something that is named nowhere, so many must stand there."""
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w'’]+")


@dataclass(frozen=True, slots=True)
class Scored:
    passage: Passage
    score: float


@dataclass(slots=True)
class _Hit:
    """What a passage shares with a question. `words` counts words, halves for part of a word."""

    score: float = 0.0
    weight: float = 0.0
    words: float = 0.0


class Index:
    """Passages of one or several documents, ready to be searched. Not changed after it is made."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = tuple(passages)
        counts = [Counter(terms(f"{one.heading}\n{one.text}")) for one in self._passages]
        self._lengths = [count.total() for count in counts]
        self._mean_length = sum(self._lengths) / max(len(counts), 1)
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, count in enumerate(counts):
            for term, times in count.items():
                self._postings[term].append((place, times))
        self._contents = {p for p, one in enumerate(self._passages) if is_contents(one.text)}
        self._has_cjk = any(is_cjk(term) for term in self._postings)

    def search(self, question: str, k: int, context: str = "") -> list[Scored]:
        """At most k passages that suit the question, best first; none for small talk.

        `context`: what the question leans on (`documents/follow.py`); its words count half. A
        question about the whole ("summarise this") gets the passages that documents open with.
        """
        own = self._asked(question)
        if not own and asks_for_overview(question):
            return self._openings(k)
        around = [word for word in self._asked(context) if word not in own]
        if not own and not around:
            return []
        weighed = [(word, 1.0) for word in own]
        weighed += [(word, _CONTEXT_WEIGHT if own else 1.0) for word in around]
        hits, whole_weight = self._hits(weighed)
        self._add_soft(hits, soft_terms(question))
        for place in self._contents & hits.keys():
            hits[place].score *= _CONTENTS_WORTH
        best = sorted(hits, key=lambda place: (-hits[place].score, place))[:k]
        num_words = sum(weight for _, weight in weighed)
        least_words = _LEAST_WITHOUT_A_NAME * num_words if self._lacks_a_name(question) else 0.0
        if not any(_suits(hits[p], num_words, whole_weight, least_words) for p in best):
            return []
        least = _LEAST_OF_BEST * hits[best[0]].score
        return [Scored(self._passages[p], hits[p].score) for p in best if hits[p].score >= least]

    def _asked(self, question: str) -> list[list[str]]:
        return [w for w in asked_terms(question) if self._has_cjk or not is_cjk(w[0])]

    def _lacks_a_name(self, question: str) -> bool:
        """Whether the question names something that stands nowhere here. A capital at a sentence's
        head says nothing.
        """
        return any(not any(t in self._postings for t in terms(n)) for n in _NAME.findall(question))

    def _hits(self, words: Sequence[tuple[Sequence[str], float]]) -> tuple[dict[int, _Hit], float]:
        """By place of the passage; and the weight of all words together. `words` with how much
        each counts; the terms of one word (pairs of characters, parts of a path) share its weight.
        """
        hits: dict[int, _Hit] = defaultdict(_Hit)
        whole_weight = 0.0
        for word, counts in words:
            rarity = {term: self._rarity(term) for term in word}
            weight, share = counts * max(rarity.values()), 1 / len(rarity)
            whole_weight += weight
            for term in rarity:
                for place, times in self._postings.get(term, ()):
                    hit = hits[place]
                    hit.score += counts * share**0.5 * rarity[term] * self._saturated(times, place)
                    hit.weight += share * weight
                    hit.words += share * counts
        return hits, whole_weight

    def _add_soft(self, hits: dict[int, _Hit], soft: Sequence[str]) -> None:
        """Half the score of a word, and only for passages that have been hit."""
        for term in soft:
            for place, times in self._postings.get(term, ()):
                if place in hits:
                    hits[place].score += 0.5 * self._rarity(term) * self._saturated(times, place)

    def _rarity(self, term: str) -> float:
        """Inverse document frequency; a term that stands nowhere is as rare as can be."""
        found = len(self._postings.get(term, ()))
        return log(1 + (len(self._passages) - found + 0.5) / (found + 0.5))

    def _saturated(self, times: int, place: int) -> float:
        long = 1 - _B + _B * self._lengths[place] / self._mean_length
        return times * (_K1 + 1) / (times + _K1 * long)

    def _openings(self, k: int) -> list[Scored]:
        """The first passages of each document in turn; the score says only that they are wanted."""
        rounds = sorted(self._passages, key=lambda one: one.index)
        return [Scored(passage, 1.0) for passage in rounds[:k]]


def _suits(hit: _Hit, num_words: float, whole_weight: float, least_words: float) -> bool:
    """Whether a passage shares enough of a question; measured in docs/decisions.md.

    Rare words count more. One word alone must be nearly all of it; two may be less.
    """
    share = hit.weight / whole_weight
    if hit.words < least_words:
        return False
    if hit.words < 1.5:
        return share >= 0.6
    return share >= 0.4 or hit.words >= 0.5 * num_words


def asks_something(question: str) -> bool:
    """Whether a question has content, so that finding nothing for it is worth saying."""
    return bool(asked_terms(question))
