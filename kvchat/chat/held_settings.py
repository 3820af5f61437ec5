"""The settings while the program runs: what holds and where it comes from, what a change would mean
before it is made, and making it.

Formats and limits hold at once for the model that runs; what needs the model to be loaded again is
told apart. Thread-safe. Loads no model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.chat.saved import SavedSettings
from kvchat.engine.limits import limits_for
from kvchat.errors import ModelError
from kvchat.memory.verdicts import judgement_of
from kvchat.models.verdicts import (
    FORMAT_SETTINGS,
    Verdict,
    keep_verdicts,
    refuse_failed,
    verdict_key,
    verdicts,
)
from kvchat.planner.ledger import entry, stored
from kvchat.settings import SCHEMA, Settings, changed
from kvchat.settings_sources import Source, Sources

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine
    from kvchat.engine.foretold import Foretold

Values = Mapping[str, object]


class HeldSettings:
    """`running`: what the model that is loaded was loaded with. `engine`: gives it, or None."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources | None,
        data_dir: Path,
        engine: Callable[[], Engine | None],
    ) -> None:
        self.now = self.running = settings
        self.lock = threading.RLock()
        self.saved = SavedSettings(data_dir / "settings.toml")
        self.sources = sources or Sources.as_resolved(settings, self.saved.path)
        self._data_dir, self._engine = data_dir, engine
        self._key: tuple[Settings, str] | None = None

    # --- the model that runs ----------------------------------------------------------------------

    @property
    def verdict_key(self) -> str:
        """Read from the weights once."""
        running, known = self.running, self._key
        if known is None or known[0] is not running:
            known = self._key = running, verdict_key(running)
        return known[1]

    def verdicts(self) -> dict[str, Verdict]:
        """What the model that runs here was measured with, by pair of KV formats."""
        return verdicts(self._data_dir, self.verdict_key, self.running.layer_formats)

    def proven(self, found: list[Verdict]) -> None:
        """What the engine found out while nothing was asked: kept, and used from the next text on.
        Raises StoreError.
        """
        keep_verdicts(self._data_dir, self.verdict_key, found, self.running.layer_formats)
        with self.lock:
            engine = self._engine()
            if engine is None:
                return
            known, before = self.verdicts(), engine.limits.storing.seal
            engine.limits = limits_for(self.now, engine.loaded.device, known)
            against = judgement_of(before, known)
            if engine.limits.storing.seal != before and against is not None:
                engine.tell(_sealed_as_computed(str(before), against))

    def pending(self) -> list[str]:
        """Settings that hold once the model is loaded again."""
        return [name for name in _after_reload(SCHEMA) if self._differs(name, self.now)]

    def _differs(self, name: str, settings: Settings) -> bool:
        return bool(getattr(settings, name) != getattr(self.running, name))

    # --- what holds, and why ----------------------------------------------------------------------

    def source(self, name: str) -> Source:
        return self.sources.source(name, self.now.model)

    def below(self) -> Settings:
        """What would hold if the person had changed nothing."""
        return self.sources.below(self.now.model)

    def for_model(self, model: str) -> Settings:
        """What would hold with that model. Raises SettingsError."""
        return self.sources.changed({"model": model}, model=model).settings()

    # --- changing ---------------------------------------------------------------------------------

    def apply(
        self, changes: Values, resets: Collection[str] = (), *, only_model: bool = False
    ) -> list[str]:
        """Changes settings and keeps them for the next start; returns those that need a reload.
        `resets` go back to what is below the person's own; `only_model`: for the model that runs.

        Raises SettingsError if one of them is wrong, StoreError if they cannot be kept, and changes
        nothing then.
        """
        with self.lock:
            model = self.now.model
            sources = self.sources.changed(changes, resets, only_model=only_model, model=model)
            settings = sources.settings()
            changed_names = {*changes, *resets}
            self.refuse_failed(settings, changed_names)
            self.saved.keep(dict(changes), resets, model=model, only_model=only_model)
            self.sources, self.now = sources, settings
            engine = self._engine()
            if engine is not None:
                engine.limits = limits_for(settings, engine.loaded.device, self.verdicts())
        return [name for name in _after_reload(changed_names) if self._differs(name, settings)]

    def refuse_failed(self, settings: Settings, names: Collection[str]) -> None:
        """Formats hold at once, and so for the model that runs now."""
        running = self.running
        settings = replace(settings, model=running.model, layer_formats=running.layer_formats)
        names = FORMAT_SETTINGS if "allow_unproven" in names else names
        refuse_failed(settings, self._data_dir, names)

    # --- before it is changed ---------------------------------------------------------------------

    def with_changes(self, changes: Values) -> Settings:
        """Raises SettingsError."""
        return changed(self.now, changes)

    def needs_reload(self, settings: Settings) -> bool:
        """Whether the model that runs must be loaded again for them."""
        return any(self._differs(name, settings) for name in _after_reload(SCHEMA))

    def foretell(self, settings: Settings) -> Foretold:
        """What these settings would mean here: now, or after a reload where they need one. Raises
        ModelError where no model is loaded, or the one that they name cannot be read.
        """
        from kvchat.engine.foretold import costs_under, foretell

        engine = self._engine()
        if engine is None:
            raise ModelError("model_still_loading")
        device = engine.loaded.device
        if not self.needs_reload(settings):
            limits = limits_for(settings, device, self.verdicts())
            return foretell(engine.room.costs_under(limits), engine.room.latest, limits)
        about = (settings.model, settings.dtype, settings.weights, settings.layer_formats)
        other = _other_costs(self._data_dir, *about, engine.costs.device_type)
        known = verdicts(self._data_dir, verdict_key(settings), settings.layer_formats)
        limits = limits_for(settings, device, known)
        return foretell(costs_under(other, limits), engine.room.latest, limits)


def _after_reload(names: Collection[str]) -> list[str]:
    return [one for one in names if one in SCHEMA and SCHEMA[one].applies == "reload"]


@lru_cache(maxsize=32)
def _other_costs(
    data_dir: Path, model: str, dtype: str, weights: str, layers: str, kind: str
) -> Any:
    """Costs of a model that is not loaded, whose files are looked at once. Raises ModelError."""
    from kvchat.models.planned import costs_of, find

    planned = find(Settings(model=model, dtype=dtype, weights=weights), data_dir)
    return costs_of(planned, layers, kind)


def _sealed_as_computed(wanted: str, against: Verdict) -> dict[str, Any]:
    """The ledger's entry where text was to be stored in a pair of formats that then failed."""
    figures = {"kl": f"{against.kl:.4f}", "same": f"{against.same_percent:.1f}"}
    before, after = (stored([pair], "device") for pair in (wanted, "fp/fp"))
    arguments = {"formats": wanted} | figures
    return entry("seal_as_computed", arguments, "measured", 0, None, before=before, after=after)
