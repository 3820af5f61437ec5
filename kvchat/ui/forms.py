"""The settings as a form: one entry a setting, made from the schema in one language.

Nothing here names a setting: what `kvchat.settings` adds appears on the screen by itself. Words for
choices, units, groups and presets are looked up and fall back to what the settings file would say.
KV formats say what the loaded model was measured with in them: one that it failed is not offered,
and one that nothing is known of is named so.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kvchat.errors import SettingsError
from kvchat.memory.formats import FormatPair, pairs
from kvchat.memory.verdicts import STEPS, Verdict, judgement_of
from kvchat.models.verdicts import FORMAT_SETTINGS
from kvchat.settings import SCHEMA, Entry, Settings, checked, presets, read_preset
from kvchat.ui.words import problem
from kvchat.units import GIB, KIB, MIB
from kvchat.wording import Language, say, table

# Keys and values in any two formats, as a settings file writes them.
_FORMAT = re.compile(r"(fp|bf|int)[0-9]*(/(fp|int)[0-9]*)?")
_PAIRS = tuple(k if k == v else f"{k}/{v}" for k, v in pairs())


def form(
    settings: Settings,
    lang: Language,
    verdicts: Mapping[str, Verdict] | None = None,
    stage: str = "done",
) -> dict[str, Any]:
    """Groups in the schema's order, each with its entries and their values as the form shows.

    `verdicts`: of the model that runs, by pair of formats; `stage`: how far it is with measuring
    those that the planner steps down to.
    """
    known = verdicts or {}
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, entry in SCHEMA.items():
        groups.setdefault(entry.group, []).append(
            _field(name, entry, getattr(settings, name), lang)
        )
        if name in FORMAT_SETTINGS:
            for choice in groups[entry.group][-1]["choices"]:
                found = judged(choice["value"], known, settings.allow_unproven, stage, lang)
                if found.pop("known") is False:
                    choice["label"] = say("ui.choice.unmeasured", lang, label=choice["label"])
                choice |= found

    return {
        "groups": [
            {"title": _word(f"ui.group.{group}", group, lang), "fields": fields}
            for group, fields in groups.items()
        ],
        "presets": [
            {
                "value": name,
                "label": _word(f"ui.preset.{name}", name, lang),
                "about": _word(f"ui.preset.{name}.about", "", lang),
                "values": preset_values(name),
            }
            for name in presets()
        ],
    }


def preset_values(name: str) -> dict[str, Any]:
    """What a preset would put into the form. Raises SettingsError for an unknown name."""
    found = {key: checked(key, value) for key, value in read_preset(name).items()}
    return {key: written(SCHEMA[key], value) for key, value in found.items()}


def mistakes(changes: Mapping[str, object], lang: Language) -> dict[str, dict[str, str]]:
    """Setting -> what is wrong with its new value, each looked at for itself, under the name that
    the form gives it.
    """
    found = {}
    for name, value in changes.items():
        try:
            checked(name, value)
        except SettingsError as error:
            label = SCHEMA[name].label[lang] if name in SCHEMA else name
            named = SettingsError(error.code, **{**error.facts, "name": label})
            found[name] = problem(named, lang) or {}
            if meant := _with_unit(name, value):
                found[name]["remedy"] += " " + say("ui.settings.meant", lang, size=meant)
    return found


def _with_unit(name: str, value: object) -> str | None:
    """A size written without its unit, with one that makes it right; None where none does."""
    number = str(value).strip()
    if name not in SCHEMA or SCHEMA[name].kind != "size" or not number.replace(".", "").isdecimal():
        return None
    for unit in ("MiB", "GiB"):
        with suppress(SettingsError):
            checked(name, f"{number} {unit}")
            return f"{number} {unit}"
    return None


def written(entry: Entry, value: object) -> object:
    """A value as a person would write it, so that reading it back gives the same value exactly."""
    if value is None:
        return "auto"
    if entry.kind == "size" and isinstance(value, int):
        units = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
        whole = next(((f, unit) for f, unit in units if value and value % f == 0), (1, ""))
        return f"{value // whole[0]}{' ' if whole[1] else ''}{whole[1]}"
    return list(value) if isinstance(value, tuple) else value


def _field(name: str, entry: Entry, value: object, lang: Language) -> dict[str, Any]:
    return {
        "name": name,
        "kind": entry.kind,
        "label": entry.label[lang],
        "help": _on_screen(entry.help[lang], lang),
        "unit": "" if entry.kind == "size" else _word(f"ui.unit.{entry.unit}", entry.unit, lang),
        "least": None if entry.least is None else written(entry, _whole(entry, entry.least)),
        "most": None if entry.most is None else written(entry, _whole(entry, entry.most)),
        "choices": [
            {"value": one, "label": _word(f"ui.choice.{name}.{one}", _shown(one), lang)}
            for one in (_PAIRS if entry.kind == "formats" else entry.choices)
        ],
        "reload": entry.applies == "reload",
        "applies": entry.applies,
        "within": entry.within,
        "optional": entry.optional,
        "value": written(entry, value),
    }


def judged(
    name: str, verdicts: Mapping[str, Verdict], allow: bool, stage: str, lang: Language
) -> dict[str, Any]:
    """What the model was measured with in these formats, whether that is known, and whether they
    may not be chosen. Of what is not known it is said what there is to do about it.
    """
    pair = FormatPair.parse(name)
    found = judgement_of(pair, verdicts)
    if pair.hot_tokens == 0:
        return {"note": say("ui.verdict.exact", lang), "closed": False, "known": True}
    if found is None:
        by_itself = any(pair.at_least(step) for step in STEPS)
        code = stage if by_itself and stage in ("waiting", "measuring") else "unknown"
        return {"note": say(f"ui.verdict.{code}", lang), "closed": False, "known": False}
    code = "passed" if found.pair == str(pair) else "passed_by"
    code = f"ui.verdict.{code if found.passed else 'failed'}"
    kl, same = f"{found.kl:.4f}", f"{found.same_percent:.1f}"
    note = say(code, lang, pair=_shown(found.pair), kl=kl, same=same)
    return {"note": note, "closed": not found.passed and not allow, "known": True}


def _shown(name: str) -> str:
    """A format as the screen spells it, one name where keys and values are alike."""
    if not _FORMAT.fullmatch(name):
        return name
    key, _, value = name.upper().partition("/")
    return key if value in ("", key) else f"{key}/{value}"


def _on_screen(text: str, lang: Language) -> str:
    """Help as the form speaks, which has words for what files and flags write: `auto`, `off`."""
    word = say("ui.auto", lang)
    text = re.sub(r"\boff:", f"{say('ui.choice.ocr.off', lang)}:", text)
    return re.sub(r"\bauto(면)?", lambda found: word + (f"이{found[1]}" if found[1] else ""), text)


def _whole(entry: Entry, limit: float) -> float:
    return limit if entry.kind == "float" else int(limit)


def _word(code: str, plain: str, lang: Language) -> str:
    return say(code, lang) if code in table() else plain
