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
    "undo.js",
    "ledger.js",
    "bar.js",
    "held.js",
    "heard.js",
    "chat_tools.js",
    "chats.js",
    "scroll.js",
    "figures.js",
    "turns.js",
    "edit.js",
    "reasoning.js",
    "welcome.js",
    "drop.js",
    "too_long.js",
    "composer.js",
    "cards.js",
    "cites.js",
    "pages.js",
    "documents.js",
    "chart.js",
    "speed.js",
    "timeline.js",
    "table.js",
    "fields.js",
    "models.js",
    "outlook.js",
    "settings.js",
    "whatif_chart.js",
    "whatif.js",
    "keys.js",
)
STYLES = (
    "base.css",
    "layout.css",
    "chat.css",
    "code.css",
    "bar.css",
    "panel.css",
    "documents.css",
    "cache.css",
    "settings.css",
    "narrow.css",
)
ICON = "icon.svg"


@cache
def text_of(name: str) -> str:
    return (resources.files("kvchat.ui") / "static" / name).read_text(encoding="utf-8")


def head(lang: Language) -> str:
    """Styles, the words of a language, then the scripts. `<` in words could end the script.

    The styles stand here and not in gradio's `css`, which would scope them to its container: the
    page's body and what hangs on it (dialogs, the drop veil) are ours as well.
    """
    facts = json.dumps({"lang": lang, "words": words(lang)}, ensure_ascii=False)
    begin = f"window.kvchat = {facts};".replace("<", "\\u003c")
    style, script = (_joined(names) for names in (STYLES, SCRIPTS))
    return f"<style>{style}</style><script>{begin}\n{script}</script>"


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(text_of(name) for name in names)
