"""How a model's makers recommend to draw its tokens: the defaults of these settings while it runs.

From `generation_config.json` in its folder, as transformers reads it; for a name of the catalog
from there. Imports no library, for every command asks for it.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kvchat.errors import SettingsError
from kvchat.files import read_json
from kvchat.models.catalog import catalog
from kvchat.settings import checked

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_LIBRARYS_TEMPERATURE = 1.0  # what such a file means where it names none


def recommended(model: str) -> Mapping[str, object]:
    """By the names of settings; what is missing, unreadable or out of range is left out. `model`:
    as the setting of that name says it.
    """
    entry = catalog().get(model)
    if entry is not None:
        return dict(entry.sampling)
    try:
        found = read_json(Path(model).expanduser() / "generation_config.json")
    except (OSError, ValueError, RuntimeError):
        return {}
    if found.get("do_sample") is not True:  # without it the file's numbers mean nothing
        return {}
    named = {name: found[name] for name in _NAMES if isinstance(found.get(name), (int, float))}
    values: dict[str, object] = {}
    for name, value in {"temperature": _LIBRARYS_TEMPERATURE, **named}.items():
        with suppress(SettingsError):
            values[name] = checked(name, value)
    return values
