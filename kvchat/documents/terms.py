"""The terms by which text is searched: of a document, and of a question.

Words with blanks between them are folded and lightly stemmed; Chinese, Japanese and Korean runs
become pairs of characters, as their words need no blanks; names as `/var/run` and `cdrom-detect`
are terms as a whole and in parts. Word lists stand in settings/search_words.toml. Knows no score.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

from kvchat.documents.clean import DASHES
from kvchat.wording import settings_folder

_CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_CJK_RUN = re.compile(f"[{_CJK}]+")
_LINE_INSIDE = re.compile(f"(?<=[{_CJK}])\n(?=[{_CJK}])")
_JOINT = "(?:[-./:@+#'’&]|,(?=[0-9]{3}\\b))"
_RUN = re.compile(f"[{_CJK}]+|/?[^\\W{_CJK}]+(?:{_JOINT}[^\\W{_CJK}]+)*")
_PART = re.compile(r"[^\W_]+")
_OPENS_BACK = re.compile(
    r"(and|but|or|also|so|then|what about|how about|why|more|그럼|그러면|그리고|그런데|또)\b"
)
# What has no verb of its own: "In Korea?", "For Windows?"; "한국은?", "두 번째는요?", "가격도?"
_FRAGMENT = re.compile(
    r"(?:in|for|on|at|with|by|from|to|of|during|without|under|after|before)(?: [^ ?]+){1,3} ?\?"
    r"|(?:the )?(?:first|second|third|fourth|last|other|next)(?: [^ ?]+){0,2} ?\?"
    r"|(?:[^ ?]+ )?[^ ?]*[가-힣](?:은|는|도|에서는|에는)요? ?[?？]"
)


@cache
def _listed(*names: str) -> frozenset[str]:
    text = (settings_folder() / "search_words.toml").read_text(encoding="utf-8")
    lists = tomllib.loads(text)
    return frozenset(word for name in names for word in lists[name].split())


def is_cjk(term: str) -> bool:
    return bool(_CJK_RUN.match(term))


def fold(text: str) -> str:
    """One spelling for what reads the same; a line's end inside a Korean word goes."""
    return _LINE_INSIDE.sub("", unicodedata.normalize("NFKC", DASHES.sub("-", text)).casefold())


def terms(text: str) -> list[str]:
    """All terms of a text, in order, each as often as it stands there."""
    return [term for run in _RUN.findall(fold(text)) for term in _terms_of_run(run)]


def asked_terms(question: str) -> list[list[str]]:
    """The content words of a question, each as the terms that stand for it.

    None in small talk, nor where only the document itself is named ('summarise this text').
    """
    words = dict.fromkeys(word for word in _words(question) if not _is_silent(word))
    if words.keys() <= _listed("overview_alone", "document_alone"):
        return []
    # One syllable says too little, where pairs are searched.
    telling = [w for w in words if len(w) > 1 or not is_cjk(w)] or list(words)
    kept = (dict.fromkeys(_terms_of_run(word)) for word in telling)
    found = [[term for term in one if term not in _listed("stop")] for one in kept]
    return [one for one in found if one]


def soft_terms(question: str) -> list[str]:
    """Words that may help to find a place, but whose absence says nothing: come, keep, use; and
    Korean words of one syllable, which say little.
    """
    runs = (w for w in _words(question) if w in _listed("soft") or _is_short_noun(w))
    return [term for run in runs for term in _terms_of_run(run)]


def _is_short_noun(word: str) -> bool:
    return len(word) == 1 and is_cjk(word) and word not in _listed("korean_stop")


def _is_silent(word: str) -> bool:
    silent = _listed("stop", "soft", "korean_stop", "korean_endings", "small_talk", "overview")
    return word in silent or all(part in silent for part in _PART.findall(word))


def asks_for_overview(question: str) -> bool:
    """Whether a question is about a document as a whole: 'summarise this', '무슨 내용이야?'."""
    wanted = _listed("overview", "overview_alone", "document_alone")
    return not asked_terms(question) and any(word in wanted for word in _words(question))


def asks_for_summary(question: str) -> bool:
    """Whether a question says so: 'summarise this', '요약해 줘'; not 'what is this about?'."""
    return asks_for_overview(question) and any(w in _listed("overview") for w in _words(question))


def points_back(question: str) -> bool:
    """Whether a question needs the one before it: few words of its own, and no small talk."""
    words, num_own = _words(question), len(asked_terms(question))
    if num_own == 0:
        return not (asks_for_overview(question) or any(w in _listed("small_talk") for w in words))
    said = fold(question).strip()
    opens = _OPENS_BACK.match(said) or _FRAGMENT.fullmatch(said)
    return num_own <= 3 and bool(opens or any(word in _listed("back") for word in words))


def _words(question: str) -> list[str]:
    return [_without_ending(run) for run in _RUN.findall(fold(question))]


@lru_cache(maxsize=1 << 16)
def _terms_of_run(run: str) -> tuple[str, ...]:
    """Few words make most of a text, so most have been seen before."""
    return tuple(_divided(run))


def _divided(run: str) -> Iterator[str]:
    if is_cjk(run):
        yield from (run[i : i + 2] for i in range(max(len(run) - 1, 1)))
        if len(run) == 2 and run[1] in _listed("korean_particles"):
            yield run[0]  # a noun of one syllable
        return
    parts = _PART.findall(run)
    if all(part.isdecimal() for part in parts):  # 3.0 is no 3, and 1,160 is 1160
        yield run.strip("/").replace(",", "")
        return
    if len(parts) > 1:
        yield run.strip("/")
    elif run.startswith("/"):  # /run is another place than /var/run
        yield run
    yield from map(stem, parts)


def stem(word: str) -> str:
    """English inflections off, and no more: files -> fil, stored -> stor, running -> run."""
    if not (word.isascii() and word.isalpha()) or len(word) < 4:
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz"
            return word[:-1] if doubled else word
    return word[:-1] if word.endswith("e") and len(word) >= 4 else word


def _without_ending(word: str) -> str:
    """A Korean word of a question without its particle; two syllables are left, or a known word; of
    a verb at the end of a question one may be.
    """
    known = _listed(
        "korean_stop", "small_talk", "overview", "overview_alone", "document_alone", "back"
    )
    if not ("\uac00" <= word[-1] <= "\ud7a3") or word in known:
        return word
    for ending in sorted(_listed("korean_endings"), key=lambda one: (-len(one), one)):
        left = word.removesuffix(ending)
        if left != word and (len(left) >= 2 or left in known):
            return left
    short = word[:-1] if len(word) == 2 and word[1] in _listed("korean_particles") else ""
    for ending in _listed("korean_asking"):
        left = word.removesuffix(ending)
        short = left if left != word and len(left) == 1 else short
    return short or word
