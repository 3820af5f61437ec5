"""Text without all that extractors and typesetters differ in: letters and digits alone, folded.

Knows no PDF and no page.
"""

import unicodedata
from collections.abc import Sequence

_LEAST_LINE = 8
"""Letters that a line must have to be looked for by itself."""


def squeezed(text: str, places: Sequence[int] | None = None) -> tuple[str, list[int]]:
    """Letters and digits of a text, and for each the place (`places[i]`, else i) of its origin.

    Characters of place -1 are left out.
    """
    letters: list[str] = []
    origins: list[int] = []
    for at, char in enumerate(text):
        place = at if places is None else places[at]
        if place < 0:
            continue
        if char.isascii():
            if char.isalnum():
                letters.append(char.lower())
                origins.append(place)
            continue
        for one in unicodedata.normalize("NFKC", char).casefold():
            if one.isalnum():
                letters.append(one)
                origins.append(place)
    return "".join(letters), origins


def found_at(letters: str, text: str) -> list[int]:
    """Where a text stands among squeezed letters: places in `letters`, in order.

    The whole of it if it stands there in one piece, else those of its lines that do.
    """
    wanted, _ = squeezed(text)
    at = letters.find(wanted) if wanted else -1
    if at >= 0:
        return list(range(at, at + len(wanted)))
    found: list[int] = []
    after = 0
    for line in text.split("\n"):
        part, _ = squeezed(line)
        at = letters.find(part, after) if len(part) >= _LEAST_LINE else -1
        if at >= 0:
            found += range(at, at + len(part))
            after = at + len(part)
    return found
