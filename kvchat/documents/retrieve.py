"""Which passages suit a question: BM25 over terms that serve Korean, Chinese and Japanese too.

Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009). What shares
too little of the question is left out: small talk and questions about something else bring nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from kvchat.documents.passages import Passage
from kvchat.documents.terms import (
    asked_terms,
    asks_for_overview,
    is_cjk,
    points_back,
    soft_terms,
    terms,
)

_K1, _B = 1.2, 0.75
_LEAST_OF_BEST = 0.5
"""A passage whose score is below this part of the best one's is left out."""


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
        self._has_cjk = any(is_cjk(term) for term in self._postings)

    def search(self, question: str, k: int) -> list[Scored]:
        """At most k passages that suit the question, best first; none for small talk.

        A question about the whole ("summarise this") gets the passages that documents open with.
        """
        words = [w for w in asked_terms(question) if self._has_cjk or not is_cjk(w[0])]
        if not words:
            return self._openings(k) if asks_for_overview(question) else []
        hits, whole_weight = self._hits(words)
        self._add_soft(hits, soft_terms(question))
        best = sorted(hits, key=lambda place: (-hits[place].score, place))[:k]
        if not any(_suits(hits[place], len(words), whole_weight) for place in best):
            return []
        least = _LEAST_OF_BEST * hits[best[0]].score
        return [Scored(self._passages[p], hits[p].score) for p in best if hits[p].score >= least]

    def _hits(self, words: Sequence[Sequence[str]]) -> tuple[dict[int, _Hit], float]:
        """By place of the passage; and the weight of all words together.

        The terms of one word (pairs of characters, parts of a path) share its weight.
        """
        hits: dict[int, _Hit] = defaultdict(_Hit)
        whole_weight = 0.0
        for word in words:
            rarity = {term: self._rarity(term) for term in word}
            weight, share = max(rarity.values()), 1 / len(rarity)
            whole_weight += weight
            for term in rarity:
                for place, times in self._postings.get(term, ()):
                    hit = hits[place]
                    hit.score += share**0.5 * rarity[term] * self._saturated(times, place)
                    hit.weight += share * weight
                    hit.words += share
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


def _suits(hit: _Hit, num_words: int, whole_weight: float) -> bool:
    """Whether a passage shares enough of a question; measured in docs/decisions.md.

    Rare words count more. One word alone must be nearly all of it; two may be less.
    """
    share = hit.weight / whole_weight
    if hit.words < 1.5:
        return share >= 0.6
    return share >= 0.4 or hit.words >= 0.5 * num_words


def asks_something(question: str) -> bool:
    """Whether a question has content, so that finding nothing for it is worth saying."""
    return bool(asked_terms(question))


def follow_up(question: str, earlier_questions: Sequence[str]) -> str:
    """The question with the previous one before it, where it cannot stand alone.

    It has no content words, or points back ("how are they named?"). Small talk stays alone.
    """
    if not earlier_questions or not points_back(question):
        return question
    return f"{earlier_questions[-1]} {question}"
