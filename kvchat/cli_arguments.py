"""The command line of all faces: words and flags in, a namespace out, help in Korean or English.

Flags of settings are made from the schema. Knows nothing of what a face does with its flags.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvchat import __version__
from kvchat.errors import SettingsError
from kvchat.settings import SCHEMA
from kvchat.wording import LANGUAGES, Language, say

FACES = ("serve", "ask", "plan", "bench", "doctor", "test")
_COMMON = ("model", "memory_budget", "dtype", "weights", "threads")
# What argparse complains of, which it says in English only.
_COMPLAINTS = (
    ("words_missing", r"the following arguments are required: (?P<names>.+)"),
    ("words_unknown", r"unrecognized arguments: (?P<names>.+)"),
    (
        "flag_choice",
        r"argument (?P<name>\S+): invalid choice: '?(?P<value>.*?)'? "
        r"\(choose from (?P<choices>.*)\)",
    ),
    ("flag_value", r"argument (?P<name>\S+): invalid \w+ value: '(?P<value>.*)'"),
    ("flag_lonely", r"argument (?P<name>\S+): expected one argument"),
)
_OF_A_REPLY = ("max_new_tokens", "temperature", "seed")


def parse(argv: Sequence[str], lang: Language) -> argparse.Namespace:
    """Raises SettingsError for what cannot be read. Leaves the program after --help, --version."""
    first = argv[0] if argv else ""
    if first and not first.startswith("-") and first not in FACES:
        raise SettingsError("face_unknown", name=first, known=", ".join(FACES))
    if first in FACES or first in ("-h", "--help", "--version"):
        return _parser(lang).parse_args(argv)
    try:
        return _parser(lang).parse_args(["serve", *argv])
    except SettingsError as error:
        late = next((word for word in argv if word in FACES), None)
        if error.code != "words_unknown" or late is None:
            raise
        raise SettingsError("face_late", name=late) from None


def flags_of(arguments: argparse.Namespace) -> Mapping[str, object]:
    """The settings that the command line asks for: those of `--set`, then those with a flag."""
    named: dict[str, object] = dict(_pair(text) for text in arguments.set or ())
    given = {name: getattr(arguments, name, None) for name in SCHEMA}
    return named | {name: value for name, value in given.items() if value is not None}


def settings_file(arguments: argparse.Namespace, data_dir: Path) -> Path | None:
    """The one that is named, else what was kept in the data folder, if anything was."""
    kept = data_dir / "settings.toml"
    named: Path | None = arguments.settings
    return named or (kept if kept.is_file() else None)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingsError("set_unreadable", text=text)
    return name.strip().replace("-", "_"), value.strip()


class _Parser(argparse.ArgumentParser):
    """Raises SettingsError instead of leaving the program, and helps in one language."""

    def __init__(self, *, lang: Language, **about: Any) -> None:
        def formatter(prog: str) -> argparse.HelpFormatter:
            return _Formatter(prog, say("cli.usage", lang))

        super().__init__(add_help=False, allow_abbrev=False, formatter_class=formatter, **about)
        self.lang = lang
        self._positionals.title = say("cli.words", lang)
        self._optionals.title = say("cli.flags", lang)
        self.flag("-h", "--help", action="help")

    def flag(self, *names: str, **about: Any) -> None:
        """Adds an argument; its help is the sentence `cli.help.NAME`."""
        code = names[-1].lstrip("-").replace("-", "_")
        self.add_argument(*names, help=say(f"cli.help.{code}", self.lang), **about)

    def error(self, message: str) -> NoReturn:
        for code, pattern in _COMPLAINTS:
            found = re.match(pattern, message)
            if found:
                facts = found.groupdict()
                if "choices" in facts:  # some Pythons quote them, some do not
                    facts["choices"] = facts["choices"].replace("'", "")
                raise SettingsError(code, **facts)
        raise SettingsError("command_line", why=message)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str, usage_word: str) -> None:
        super().__init__(prog)
        self.usage_word = usage_word

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        prefix = f"{self.usage_word}: " if prefix is None else prefix
        super().add_usage(usage, actions, groups, prefix)


def _parser(lang: Language) -> _Parser:
    top = _Parser(lang=lang, prog="kvchat", description=say("cli.about", lang))
    top.flag("--version", action="version", version=f"kvchat {__version__}")
    faces = top.add_subparsers(dest="face", required=True, metavar="COMMAND")
    made = {}
    for face in FACES:
        about = say(f"cli.face.{face}", lang)
        made[face] = faces.add_parser(face, lang=lang, help=about, description=about)

    made["serve"].flag("--host", default="127.0.0.1")
    made["serve"].flag("--port", type=int)
    made["serve"].flag("--no-browser", action="store_true")
    made["ask"].flag("question", metavar="QUESTION")
    made["ask"].flag("--pdf", metavar="FILE", type=Path, action="append", default=[])
    made["ask"].flag("--pdf-password", metavar="TEXT", action="append", default=[])
    made["ask"].flag("--chat", metavar="NAME")
    for face in ("plan", "bench"):
        made[face].flag("--context", metavar="N", type=int)
    made["plan"].flag("--key-format", metavar="FORMAT")
    made["plan"].flag("--value-format", metavar="FORMAT")
    made["plan"].flag("--markdown", action="store_true")
    made["doctor"].flag("--report", action="store_true")
    made["bench"].flag("name", metavar="NAME", nargs="*")
    made["bench"].flag("--pairs", metavar="K/V,...")
    made["bench"].flag("--text", metavar="FILE", type=Path)
    made["bench"].flag("--documents", metavar="FOLDER", type=Path)
    for face in ("ask", "plan", "bench", "doctor"):
        made[face].flag("--json", action="store_true")
    _settings(made["ask"], _OF_A_REPLY)
    for face in ("serve", "ask", "plan", "bench", "doctor"):
        _settings(made[face], _COMMON)
        _common(made[face])
    return top


def _settings(parser: _Parser, names: Iterable[str]) -> None:
    for name in names:
        entry = SCHEMA[name]
        parser.add_argument(
            "--" + name.replace("_", "-"),
            metavar="|".join(entry.choices) or entry.kind.upper(),
            help=f"{entry.label[parser.lang]}. {entry.help[parser.lang]}".replace("%", "%%"),
        )


def _common(parser: _Parser) -> None:
    parser.flag("--set", metavar="NAME=VALUE", action="append")
    parser.flag("--preset", metavar="NAME")
    parser.flag("--settings", metavar="FILE", type=Path)
    parser.flag("--data-dir", metavar="DIR", type=Path)
    parser.flag("--lang", choices=LANGUAGES)
