"""Which of our languages a client would like to read. Knows nothing of saved settings."""

from kvchat.wording import LANGUAGES, Language


def preferred(accept_language: str | None) -> Language | None:
    """The language of ours that an Accept-Language header likes best; None if it names neither.

    `ko-KR,ko;q=0.9,en;q=0.8` -> ko. A weight of 0 means "not this one" (RFC 9110, 12.5.4).
    """
    weighed = [_weighed(part) for part in (accept_language or "").split(",")]
    liked = [(weight, lang) for weight, lang in weighed if weight > 0 and lang in LANGUAGES]
    if not liked:
        return None
    best = max(weight for weight, _ in liked)
    found = next(lang for weight, lang in liked if weight == best)
    return next(lang for lang in LANGUAGES if lang == found)


def _weighed(part: str) -> tuple[float, str]:
    tag, _, weight = part.partition(";")
    return _weight(weight), tag.strip().partition("-")[0].lower()


def _weight(text: str) -> float:
    if not text.strip():
        return 1.0
    name, _, value = text.partition("=")
    try:
        return float(value) if name.strip().lower() == "q" else 0.0
    except ValueError:
        return 0.0
