"""Every sentence that a person reads, in Korean and English, looked up by a code.

The tables are data: `settings/wording/*.toml`, one entry a code: `code = { en = "...", ko = "..."
}`.
Knows nothing of who shows a sentence, nor of the language of the browser.
"""

import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

Language = Literal["en", "ko"]
LANGUAGES: tuple[Language, ...] = ("en", "ko")


def settings_folder() -> Path:
    """The folder `settings/`: beside the package in a checkout, inside it in a wheel."""
    inside = Path(str(resources.files("kvchat"))) / "settings"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent / "settings"


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """All entries of all wording files; a code that two files define is an error of ours."""
    entries: dict[str, Mapping[str, str]] = {}
    for file in sorted((settings_folder() / "wording").glob("*.toml")):
        found = tomllib.loads(file.read_text(encoding="utf-8"))
        twice = entries.keys() & found.keys()
        if twice:
            raise ValueError(f"{file.name} defines codes again: {sorted(twice)}")
        entries.update(found)
    return entries


class _Filled(string.Formatter):
    """Whole numbers get separators, as people read them; `{port:d}` is a name and gets none."""

    def format_field(self, value: object, format_spec: str) -> str:
        counts = isinstance(value, int) and not isinstance(value, bool) and not format_spec
        return str(super().format_field(value, "," if counts else format_spec))


def say(code: str, lang: Language = "en", /, **facts: object) -> str:
    """The sentence of a code with its facts filled in. Raises KeyError for an unknown code."""
    return _Filled().format(table()[code][lang], **facts)
