"""Where each setting's value comes from, and which of several holds:

    schema defaults < the model's makers < preset < settings file < settings file, for this model
    < flags of this start

A settings file says in tables named by a model (`[models."NAME OR FOLDER"]`, as the setting
`model` writes it) what holds for that model alone. Values are immutable here: a change is another
`Sources`. Knows no screen, and not where the file lies.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from kvchat.settings import (
    OF_ALL,
    SCHEMA,
    Settings,
    changed,
    file_parts,
    read_preset,
    toml_key,
    toml_lines,
)

Source = Literal["schema", "maker", "preset", "file", "model", "flag"]
Values = Mapping[str, object]
_NONE: Values = MappingProxyType({})


def _nothing_made(_model: str) -> Values:
    return _NONE


@dataclass(frozen=True, slots=True)
class Saved:
    """What a settings file says: for all models, and for single ones."""

    general: Values = field(default_factory=dict)
    models: Mapping[str, Values] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Saved":
        """Raises SettingsError, which names the file."""
        return cls(*file_parts(file))

    def of(self, model: str) -> Values:
        return self.models.get(model, _NONE)

    def changed(
        self, changes: Values, resets: Collection[str], model: str, *, only_model: bool
    ) -> "Saved":
        """`resets` are taken out for all models and for `model`; `changes` hold for `model` alone
        or for all of them, and then `model` has none of its own there any more.
        """
        mine = {name: value for name, value in changes.items() if only_model}
        for_all = {name: value for name, value in changes.items() if not only_model}
        for name in OF_ALL:
            if name in mine:
                for_all[name] = mine.pop(name)
        general = {name: one for name, one in self.general.items() if name not in resets}
        gone = {*resets, *for_all}
        own = {name: one for name, one in self.of(model).items() if name not in gone} | mine
        models = {name: one for name, one in self.models.items() if name != model}
        return Saved(general | for_all, models | ({model: own} if own else {}))

    def to_toml(self) -> str:
        lines = toml_lines(self.general)
        for model, values in self.models.items():
            lines += ["", f"[models.{toml_key(model)}]", *toml_lines(values)]
        return "\n".join(lines).lstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class Sources:
    """All layers of one start. `preset`: the name of the one that it was started with; `made`: the
    defaults that a model's makers give, by what the setting `model` says.
    """

    preset: str | None = None
    saved: Saved = field(default_factory=Saved)
    flags: Values = field(default_factory=dict)
    made: Callable[[str], Values] = field(default=_nothing_made, compare=False)

    @classmethod
    def of_start(
        cls,
        preset: str | None,
        file: Path | None,
        flags: Values,
        made: Callable[[str], Values] = _nothing_made,
    ) -> "Sources":
        """Raises SettingsError for what cannot be read, and for wrong values."""
        found = cls(preset, Saved.read(file) if file else Saved(), flags, made)
        found.settings()
        return found

    @classmethod
    def as_resolved(cls, settings: Settings, file: Path | None = None) -> "Sources":
        """For settings that come from nowhere else: what the file does not say counts as flags."""
        found = cls(None, Saved.read(file) if file else Saved())
        usual = found.settings()
        flags = {
            name: getattr(settings, name)
            for name in SCHEMA
            if getattr(settings, name) != getattr(usual, name)
        }
        return replace(found, flags=flags)

    @property
    def _preset_values(self) -> Values:
        return read_preset(self.preset) if self.preset else _NONE

    def settings(self) -> Settings:
        """What holds. Raises SettingsError."""
        for_all = {**self._preset_values, **self.saved.general}
        named = {n: v for n, v in {**for_all, **self.flags}.items() if n == "model"}
        model = changed(Settings(), named).model
        values = {**self.made(model), **for_all, **self.saved.of(model), **self.flags}
        return changed(Settings(), values)

    def source(self, name: str, model: str) -> Source:
        """Whose value of a setting holds while that model runs."""
        if name in self.flags:
            return "flag"
        if name in self.saved.of(model):
            return "model"
        if name in self.saved.general:
            return "file"
        if name in self._preset_values:
            return "preset"
        return "maker" if name in self.made(model) else "schema"

    def below(self, model: str) -> Settings:
        """What would hold if a person had changed nothing: the schema's defaults, those of the
        model's makers and the preset of this start.
        """
        values = {**self.made(model), **self._preset_values, "model": model}
        return changed(Settings(), values)

    def changed(
        self,
        changes: Values,
        resets: Collection[str] = (),
        *,
        only_model: bool = False,
        model: str | None = None,
    ) -> "Sources":
        """Flags say nothing any more of what was changed here. Raises SettingsError where a value
        is wrong.
        """
        model = model or self.settings().model
        saved = self.saved.changed(changes, resets, model, only_model=only_model)
        gone = {*changes, *resets}
        flags = {name: value for name, value in self.flags.items() if name not in gone}
        found = replace(self, saved=saved, flags=flags)
        found.settings()
        return found
