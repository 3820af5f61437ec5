"""What the browser needs to make sentences of codes, and what a person is told of an error.

The tables themselves are `settings/wording/*.toml`. Knows no component.
"""

import logging
from collections.abc import Mapping
from typing import Any

from kvchat.errors import KVChatError
from kvchat.wording import Language, say, table

logger = logging.getLogger(__name__)

# What the live channel and the drawn parts of the screen speak of by code.
_DRAWN = ("ui.", "fits.", "ledger.", "reason.", "undo.", "notice.", "document.")


def words(lang: Language) -> dict[str, str]:
    """Code -> template, for all codes that scripts may meet. `say` in base.js fills them in."""
    return {code: entry[lang] for code, entry in table().items() if code.startswith(_DRAWN)}


def sentence(said: object, lang: Language, **facts: object) -> str:
    """A note in a person's language: a code, or a code with its facts; `facts`: the known ones."""
    code, known = str(said), facts
    if isinstance(said, Mapping):
        code, known = str(said.get("code", "")), {**facts, **(said.get("facts") or {})}
    try:
        return say(code, lang, **known)
    except KeyError:  # a code or a fact that is not there: no words are better than a code
        logger.warning("no words for %s", code)
        return ""


def problem(
    error: KVChatError | Mapping[str, Any] | None, lang: Language, **facts: object
) -> dict[str, Any] | None:
    """What went wrong and what to do: `{"message", "remedy"}` in one language, and the `code` and
    `facts` that a card goes by; or None.

    A row's error says its code, its facts and a sentence; `facts` are those that its row knows.
    """
    if error is None:
        return None
    if isinstance(error, KVChatError):
        remedy = _on_screen(f"error.{error.code}.remedy")
        remedied = error.remedy(lang) if remedy is None else say(remedy, lang, **error.facts)
        said = {"message": error.message(lang), "remedy": remedied}
        return said | {"code": error.code, "facts": error.row()["facts"]}
    code, known = f"error.{error.get('code', '')}", {**facts, **(error.get("facts") or {})}
    try:
        remedy = _on_screen(f"{code}.remedy") or f"{code}.remedy"
        said = {"message": say(code, lang, **known), "remedy": say(remedy, lang, **known)}
        return said | {"code": code.removeprefix("error."), "facts": known}
    except KeyError:  # a code or a fact that is not there: the sentence as it came is still true
        return {"message": str(error.get("message", "")), "remedy": str(error.get("remedy", ""))}


def _on_screen(code: str) -> str | None:
    """What can be pressed, where the command line would be told of flags."""
    screen = f"{code}.screen"
    return screen if screen in table() else None
