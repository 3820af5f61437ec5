"""Settings read and written: flags, files, presets. A value is checked where it enters, once.

Precedence: schema defaults < preset < user file < flags. What settings there are stands in
`settings_schema.py`. What a value means in bytes is the footprint's to say.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from kvchat.errors import SettingsError
from kvchat.settings_layers import layers_text, parse_layers
from kvchat.settings_schema import FORMAT_NAMES, Kind
from kvchat.settings_schema import RUNGS as RUNGS
from kvchat.settings_schema import SCHEMA as SCHEMA
from kvchat.settings_schema import Entry as Entry
from kvchat.settings_schema import Settings as Settings
from kvchat.units import format_size, parse_size
from kvchat.wording import settings_folder

# What names models cannot be one model's own.
OF_ALL = frozenset({"model", "model_folders"})


def checked(name: str, value: object) -> object:
    """The value of a setting from text, TOML or a form. Raises SettingsError with the allowed
    range.
    """
    if name not in SCHEMA:
        raise SettingsError("setting_unknown", name=name, known=", ".join(SCHEMA))
    entry = SCHEMA[name]
    if entry.optional and value in (None, "auto", ""):
        return None
    found = _converted(name, entry, value)
    low, high = entry.least, entry.most
    if isinstance(found, (int, float)) and not (
        (low is None or found >= low) and (high is None or found <= high)
    ):
        least, most = (_shown(entry, limit) for limit in (low, high))
        raise SettingsError("setting_range", name=name, value=value, least=least, most=most)
    return found


def _shown(entry: Entry, limit: float | None) -> object:
    return format_size(int(limit)) if entry.kind == "size" and limit is not None else limit


def _converted(name: str, entry: Entry, value: object) -> object:
    wrong = SettingsError(
        f"setting_not_{entry.kind}", name=name, value=value, known=", ".join(FORMAT_NAMES)
    )
    match entry.kind:
        case "size":
            return _size(value, wrong)
        case "choice":
            if value not in entry.choices:
                raise SettingsError(
                    "setting_choice", name=name, value=value, choices=", ".join(entry.choices)
                )
            return value
        case "texts":
            return _texts(value, wrong)
        case "list":
            return _listed(name, entry, value, wrong)
        case "formats":
            return _formats(value, wrong)
        case "layers":
            return layers_text(parse_layers(value))
        case "text":
            if not isinstance(value, str):
                raise wrong
            return _whole(value)
        case "bool":
            return _truth(value, wrong)
        case "int" | "float":
            return _number(entry.kind, value, wrong)


def _truth(value: object, wrong: SettingsError) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise wrong
    return value


def _size(value: object, wrong: SettingsError) -> int:
    if isinstance(value, str) and value.strip() == "0":
        return 0
    if isinstance(value, str):
        try:
            return parse_size(value)
        except SettingsError:  # the sentence of the setting says which one it is, too
            raise wrong from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong
    return value


def _listed(name: str, entry: Entry, value: object, wrong: SettingsError) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise wrong
    if not value:
        raise SettingsError("setting_none", name=name, choices=", ".join(entry.choices))
    unknown = [part for part in value if part not in entry.choices]
    if unknown or len(set(value)) != len(value):
        raise SettingsError(
            "setting_choice",
            name=name,
            value=", ".join(map(str, value)),
            choices=", ".join(entry.choices),
        )
    return tuple(value)


def _texts(value: object, wrong: SettingsError) -> tuple[str, ...]:
    if isinstance(value, str):
        value = re.split(r"[\n;]", value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise wrong
    return tuple(dict.fromkeys(_whole(one.strip()) for one in value if one.strip()))


def _whole(text: str) -> str:
    """JSON can say half a character, no file can: then U+FFFD stands there."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _formats(value: object, wrong: SettingsError) -> str:
    """One name where keys and values are stored alike."""
    names = [part.strip() for part in value.split("/")] if isinstance(value, str) else []
    if not 1 <= len(names) <= 2 or not all(name in FORMAT_NAMES for name in names):
        raise wrong
    return names[0] if names[0] == names[-1] else "/".join(names)


def _number(kind: Kind, value: object, wrong: SettingsError) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise wrong
    try:
        number = float(value)
        if kind == "float":
            return number
        whole = int(value) if not isinstance(value, float) else int(number)
    except (ValueError, OverflowError):
        raise wrong from None
    if whole != number and abs(number) < 2**53:
        raise wrong
    return whole


def changed(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """A copy with checked changes. Raises SettingsError and changes nothing if one of them is
    wrong.
    """
    return replace(settings, **{name: checked(name, value) for name, value in changes.items()})  # type: ignore[arg-type]


def presets() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (settings_folder() / "presets").glob("*.toml")))


def read_preset(name: str) -> Mapping[str, object]:
    """Raises SettingsError, which names the file that a wrong value stands in."""
    file = _preset_file(name)
    values = read_file(file)
    _changed_by(file, values, Settings())
    return values


def _preset_file(name: str) -> Path:
    if name not in presets():
        raise SettingsError("preset_unknown", name=name, known=", ".join(presets()))
    return settings_folder() / "presets" / f"{name}.toml"


def read_file(path: Path) -> Mapping[str, object]:
    """A TOML file of settings, its keys not yet checked. Raises SettingsError if it cannot be
    read.
    """
    try:
        return _toml_table(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise SettingsError("settings_missing", path=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("settings_unreadable", path=path, why=_one_line(error)) from None


def _toml_table(text: str, path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError alone: a number of 5,000 digits
        raise SettingsError("settings_unreadable", path=path, why=_one_line(error)) from None


def _changed_by(file: Path, changes: Mapping[str, object], settings: Settings) -> Settings:
    try:
        return changed(settings, changes)
    except SettingsError as error:
        raise error.in_file(file) from None


Parts = tuple[Mapping[str, object], dict[str, Mapping[str, object]]]


def file_parts(file: Path) -> Parts:
    """What a settings file says for all models, and for single ones by what `model` says. Raises
    SettingsError for a value that is wrong in any of them.
    """
    return _parts(read_file(file), file)


def parse_file(text: str, name: str) -> Parts:
    """The same of a text that was a file of that name."""
    return _parts(_toml_table(text, Path(name)), Path(name))


def _parts(table: Mapping[str, object], file: Path) -> Parts:
    general = dict(table)
    found = general.pop("models", {})
    models: dict[str, Mapping[str, object]] = found if isinstance(found, dict) else {"": {}}
    if not all(
        name and isinstance(one, dict) and not one.keys() & OF_ALL for name, one in models.items()
    ):
        raise SettingsError("settings_models").in_file(file)
    for values in (general, *models.values()):
        _changed_by(file, values, Settings())
    return general, models


def to_toml(settings: Settings) -> str:
    """The settings that differ from the defaults, as a file that is read back."""
    values = {one.name: getattr(settings, one.name) for one in fields(Settings)}
    differing = {
        one.name: values[one.name] for one in fields(Settings) if values[one.name] != one.default
    }
    return "\n".join(toml_lines(differing)) + "\n"


def toml_lines(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items()]


def toml_key(name: str) -> str:
    return _toml(name)


def _toml(value: object) -> str:
    if value is None:
        return '"auto"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
