"""Every sentence that a person reads, in Korean and English, looked up by a code.

The tables are data: `settings/wording/*.toml`, one entry a code: `code = { en = "...", ko = "..."
}`.
Knows nothing of who shows a sentence, nor of the language of the browser.
"""

import re
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


# Particles as the tables write them -> what follows a last sound with a consonant, and without.
_PARTICLES = {
    "은(는)": ("은", "는"),
    "이(가)": ("이", "가"),
    "을(를)": ("을", "를"),
    "와(과)": ("과", "와"),
    "(으)로": ("으로", "로"),
    "(이)": ("이", ""),
}
_BOTH = re.compile("|".join(map(re.escape, _PARTICLES)))
_UNIT = re.compile(r"[0-9]\s*(?:[KMGT]i?)?B$|%$")  # read as byte, percent: no consonant at the end
_NAMES_WITH_L, _NAMES_WITH_CONSONANT = "lL", "mMnN"  # el, em, en; all other letters end in a vowel
_DIGITS_WITH_L, _DIGITS_WITH_CONSONANT = "178", "036"
_L = 8  # the place of the consonant l in a syllable's code


def with_particle(text: str, particle: str) -> str:
    """The form of a particle, written as `을(를)`, that fits the last sound of a text.

    Letters are read by their names, numbers and units as in Korean. Where the sound is not known
    (other scripts), both forms stay.
    """
    ending = _last_sound(text)
    if ending is None:
        return particle
    after_consonant, after_vowel = _PARTICLES[particle]
    if particle == "(으)로" and ending == "l":
        return after_vowel
    return after_consonant if ending else after_vowel


Sound = Literal["", "l", "consonant"]


def _last_sound(text: str) -> Sound | None:
    shown = text.rstrip("'\"’”)]}>」 .,:;/\\_-")
    if not shown:
        return None
    last = shown[-1]
    if "가" <= last <= "힣":
        final = (ord(last) - ord("가")) % 28
        return "l" if final == _L else "consonant" if final else ""
    if last.isdigit() and last.isascii():
        return _last_of_number(shown)
    if not last.isascii() or _UNIT.search(shown):
        return "" if last.isascii() else None
    return "l" if last in _NAMES_WITH_L else "consonant" if last in _NAMES_WITH_CONSONANT else ""


def _last_of_number(text: str) -> Sound:
    """Zeros at the end are read as ten, hundred, ...: of these only jo (10^12) ends in a vowel."""
    whole = re.search(r"(?<![0-9.])[1-9][0-9,]*$", text)
    digits = whole[0].replace(",", "") if whole else ""
    if 12 <= len(digits) - len(digits.rstrip("0")) < 16:
        return ""
    last = text[-1]
    return "l" if last in _DIGITS_WITH_L else "consonant" if last in _DIGITS_WITH_CONSONANT else ""


class _Filled(string.Formatter):
    """Whole numbers get separators, as people read them; `{port:d}` is a name and gets none."""

    def format_field(self, value: object, format_spec: str) -> str:
        counts = isinstance(value, int) and not isinstance(value, bool) and not format_spec
        return str(super().format_field(value, "," if counts else format_spec))


def say(code: str, lang: Language = "en", /, **facts: object) -> str:
    """The sentence of a code with its facts filled in; where one of them is the number 1, that of
    `CODE.one` if there is one. Raises KeyError for an unknown code.
    """
    is_one = f"{code}.one" in table() and any(
        type(one) is int and one == 1 for one in facts.values()
    )
    sentence = table()[f"{code}.one" if is_one else code][lang]
    if lang != "ko" or not _BOTH.search(sentence):
        return _Filled().format(sentence, **facts)
    said, filled = "", ""
    for literal, name, spec, conversion in string.Formatter().parse(sentence):
        said += _particles_after(filled, literal)
        if name is not None:
            field = (
                f"{{{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            )
            filled = _Filled().format(field, **facts)
            said += filled
    return said


def _particles_after(filled: str, literal: str) -> str:
    """The words after a fact, with the particle at their beginning chosen by that fact."""
    found = _BOTH.search(literal)
    if not found:
        return literal
    between = literal[: found.start()]
    chosen = with_particle(filled + between, found[0])
    return between + chosen + literal[found.end() :]
