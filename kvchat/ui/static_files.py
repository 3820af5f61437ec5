"""The scripts and styles of the screen, read from `static/` once, for gradio to put on its page.

Nothing is fetched from elsewhere: no font, no library. Knows no chat.
"""

import json
from functools import cache
from importlib import resources

from kvchat.ui.words import words
from kvchat.wording import Language

# In the order in which they run: each may use what stands before it.
SCRIPTS = (
    "first.js",
    "base.js",
    "icons.js",
    "live.js",
    "panel.js",
    "top.js",
    "ledger.js",
    "bar.js",
    "chats.js",
    "turns.js",
    "edit.js",
    "welcome.js",
    "drop.js",
    "composer.js",
    "documents.js",
    "table.js",
    "fields.js",
    "settings.js",
    "keys.js",
)
STYLES = ("base.css", "layout.css", "chat.css", "code.css", "bar.css", "panel.css", "narrow.css")


@cache
def _read(name: str) -> str:
    return (resources.files("kvchat.ui") / "static" / name).read_text(encoding="utf-8")


def styles() -> str:
    return "\n".join(_read(name) for name in STYLES)


def head(lang: Language) -> str:
    """One script: the words of a language, then the files. `<` in words could end the script."""
    facts = json.dumps({"lang": lang, "words": words(lang)}, ensure_ascii=False)
    begin = f"window.kvchat = {facts};".replace("<", "\\u003c")
    return f"<script>{begin}\n" + "\n".join(_read(name) for name in SCRIPTS) + "</script>"
