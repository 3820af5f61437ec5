"""Which formats of the KV cache a model was measured with, and how well it did: kept, and asked.

One JSON file in the data folder, not a table of the store: `plan` and a second program read it
while another holds the folder, and a benchmark writes it then. What was measured is kept; whether
that is enough is decided when it is read. The built-in model's verdicts come with the program, and
what is measured here goes before them. Those of other models are kept under a digest beside the
name: folders of one name may hold different models. Knows no engine and no measuring.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvchat.errors import SettingsError, StoreError
from kvchat.files import replace_file
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import LEAST_SAME_PERCENT as LEAST_SAME_PERCENT
from kvchat.memory.verdicts import MOST_KL as MOST_KL
from kvchat.memory.verdicts import Verdict as Verdict
from kvchat.memory.verdicts import failure_of, judgement_of
from kvchat.models.catalog import builtin
from kvchat.models.digest import weights_digest
from kvchat.settings import SCHEMA, Settings
from kvchat.wording import settings_folder

_NAME = "verdicts.json"
_VERSION = 1
FORMAT_SETTINGS = frozenset(name for name, entry in SCHEMA.items() if entry.kind == "formats")
_NUMBERS = ("kl", "same_percent", "perplexity_percent", "num_scored", "measured_at_s")


def verdicts(data_dir: Path, model: str, layers: str = "") -> dict[str, Verdict]:
    """What is known of a model, by pair of formats; nothing where the file cannot be read.

    `model`: as `verdict_key` says. `layers`: the setting `layer_formats`. What passed without it
    passes all the more with it.
    """
    own = _read(data_dir / _NAME)
    found = _known(_read(settings_folder() / _NAME), model) | _known(own, model)
    if layers:
        found = {pair: one for pair, one in found.items() if one.passed}
        found |= _known(own, _key(model, layers))
    return found


def keep_verdicts(data_dir: Path, model: str, found: Iterable[Verdict], layers: str = "") -> None:
    """Adds to what is known; a pair measured again replaces what was. Whole or not at all.

    Raises StoreError where the folder cannot be written.
    """
    rows, key = dict(_read(data_dir / _NAME)), _key(model, layers)
    known = _known(rows, key) | {one.pair: one for one in found}
    rows[key] = {pair: _row(one) for pair, one in known.items()}
    written = json.dumps({"version": _VERSION, "models": rows}, ensure_ascii=False, indent=1)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(data_dir / _NAME, written)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise StoreError("folder_unusable", folder=data_dir, why=why) from None


def refuse_failed(
    settings: Settings, data_dir: Path, names: Iterable[str] = FORMAT_SETTINGS
) -> None:
    """Raises SettingsError where one of these settings is a pair of formats that the settings'
    model did not pass, unless `allow_unproven`. Defaults are not refused: nobody chose them.
    """
    if settings.allow_unproven:
        return
    known = verdicts(data_dir, verdict_key(settings), settings.layer_formats)
    defaults = Settings()
    for name in FORMAT_SETTINGS.intersection(names):
        value = getattr(settings, name)
        against = failure_of(FormatPair.parse(value), known)
        if against is not None and value != getattr(defaults, name):
            raise SettingsError(
                "format_failed",
                name=name,
                value=value,
                model=model_name(settings),
                pair=against.pair,
                kl=f"{against.kl:.4f}",
                same=f"{against.same_percent:.1f}",
                most=MOST_KL,
                least=f"{LEAST_SAME_PERCENT:.0f}",
            )


def notices_about(settings: Settings, known: Mapping[str, Verdict]) -> tuple[str, ...]:
    """What is to be said of the formats that text is stored in: that nothing is known of them for
    this model, or that it failed. `known`: its verdicts, by pair.
    """
    pair = FormatPair.parse(settings.seal_format)
    found = judgement_of(pair, known)
    if pair.hot_tokens == 0 or (found is not None and found.passed):
        return ()
    if found is None:
        return ("notice.format_unmeasured",)
    return () if settings.allow_unproven else ("notice.format_failed",)


_NO_PATH = (OSError, RuntimeError, ValueError)  # that loading it will tell


def model_name(settings: Settings) -> str:
    """As the model will be called once it is loaded."""
    if settings.model == builtin().name:
        return settings.model
    try:
        return Path(settings.model).expanduser().resolve().name
    except _NO_PATH:
        return settings.model


def verdict_key(settings: Settings) -> str:
    """What the verdicts of the settings' model are kept under: its name, and what tells its
    weights, as they are loaded, from others. Only the name where they cannot be read.
    """
    name = model_name(settings)
    if settings.model == builtin().name:
        return name
    try:
        digest = weights_digest(Path(settings.model).expanduser(), settings.weights)
    except _NO_PATH:
        return name
    return f"{name} {digest.hex()[:16]}"


def _key(model: str, layers: str) -> str:
    return f"{model} [{layers}]" if layers else model


def _known(rows: Mapping[str, Any], key: str) -> dict[str, Verdict]:
    """What can be made sense of; the rest can be measured again."""
    found = {}
    for pair, row in _dict(rows.get(key)).items():
        try:
            one = Verdict(str(FormatPair.parse(pair)), **row)
        except (SettingsError, TypeError):
            continue
        if all(isinstance(getattr(one, name), (int, float)) for name in _NUMBERS):
            found[one.pair] = one
    return found


def _row(verdict: Verdict) -> dict[str, object]:
    return {name: value for name, value in asdict(verdict).items() if name != "pair"}


def _read(file: Path) -> Mapping[str, Any]:
    """Rows by model and pair. A damaged file is as none: it can be measured again."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return _dict(found["models"]) if found["version"] == _VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _dict(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}
