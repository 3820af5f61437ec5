"""Which model runs: loaded at the start, changed and let go of while the program runs.

Before the model that runs is let go of, it is known that the other can be loaded and fits, as far
as files and numbers tell. Where it cannot be loaded all the same, or is called off, the one that
ran is loaded again. Answers under way are stopped first, and what was written is kept; chats go on
with whatever model runs then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.chat.held_settings import HeldSettings
from kvchat.engine.limits import limits_for
from kvchat.engine.worker import Load, Worker
from kvchat.errors import KVChatError, ModelError
from kvchat.settings import Settings, changed
from kvchat.settings_sources import Sources
from kvchat.units import MIB

if TYPE_CHECKING:
    from kvchat.chat.answer import LiveAnswer
    from kvchat.engine.engine import Engine
    from kvchat.models.offered import Offered, Way
    from kvchat.models.outlook import Room
    from kvchat.planner.costs import Costs

LONGEST_END_S = 60.0  # of a step of an answer that is stopped
# What is said of one model when it is loaded, and not of others.
OF_ONE = ("dtype", "weights")


class Loading:
    """`use` is given each engine as soon as it stands. `stop_answers` tells all answers to end."""

    def __init__(
        self,
        held: HeldSettings,
        data_dir: Path,
        use: Callable[[Engine], None],
        stop_answers: Callable[[], list[LiveAnswer]],
    ) -> None:
        self._held, self.data_dir = held, data_dir
        self._use, self._stop_answers = use, stop_answers
        self._changing = threading.Lock()
        self._tried: tuple[Sources, ...] = (held.sources,)
        self.engine: Engine | None = None
        self.worker = Worker(self._load(held.sources))

    # --- how a model is loaded --------------------------------------------------------------------

    def _load(
        self,
        sources: Sources,
        settings: Settings | None = None,
        keep: Mapping[str, object] | None = None,
    ) -> Load:
        """`settings`: with what it is loaded, where that is not what the layers say. `keep`: what
        is written down once it is loaded: `model`, and what is that model's own.
        """
        model = sources.settings().model

        def load(progress: Any, cancel: threading.Event) -> Engine:
            # Seconds of imports: the page must not wait.
            from kvchat.engine.open import open_engine

            held = self._held
            with held.lock:
                if held.sources not in self._tried:  # somebody changed a setting meanwhile
                    held.sources = self._wanted({**(keep or {}), "model": model})
                else:
                    held.sources = sources
                held.now = held.sources.settings()
                self._tried = (held.sources,)
            wanted = settings or held.now
            engine = open_engine(wanted, self.data_dir, progress, cancel)
            with held.lock:  # they may have changed while it was loaded
                held.running = wanted
                engine.limits = limits_for(held.now, engine.loaded.device, held.verdicts())
                self._use(engine)
                self.engine = engine
            if keep is not None:
                self._keep(keep)
            return engine

        return load

    def _as_it_is(self) -> tuple[Load, ...]:
        """What loads the model that runs as it runs; none where none does or is to."""
        held, runs = self._held, self.engine is not None or not self.worker.is_loaded(0)
        if not runs:
            return ()
        as_loaded = {name: getattr(held.running, name) for name in held.pending()}
        return (self._load(held.sources, changed(held.now, as_loaded)),)

    def _keep(self, changes: Mapping[str, object]) -> None:
        """As far as it can be: the model runs, whatever the next start is to load."""
        model = str(changes["model"])
        own = {name: one for name, one in changes.items() if name in OF_ONE}
        self._held.saved.keep({"model": model}, model=model)
        self._held.saved.keep(own, model=model, only_model=True)

    # --- changing it ------------------------------------------------------------------------------

    def change(self, changes: Mapping[str, object]) -> None:
        """Loads another model, or the same in another precision: `model`, `dtype`, `weights`.

        Raises SettingsError, ModelError and OutOfMemory where it is known before that it cannot be
        loaded; nothing is changed then.
        """
        with self._changing:
            sources = self._wanted(changes)
            self.refuse(sources.settings())
            before = self._as_it_is()
            self._stop()
            self._tried = (self._held.sources,)
            self.worker.change(self._load(sources, keep=changes), *before)

    def reload(self) -> None:
        """Loads the model again, for settings that need it; where that fails, as it was. Raises the
        same.
        """
        held = self._held
        with self._changing:
            self.refuse(held.now)
            before = self._as_it_is()
            self._stop()
            self._tried = (held.sources,)
            self.worker.change(self._load(held.sources), *before)

    def unload(self) -> None:
        """Gives the memory of the model back; none runs until one is loaded."""
        with self._changing:
            self._stop()
            self.worker.change()

    def cancel(self) -> None:
        """Calls the loading off that is under way."""
        self.worker.cancel_load()

    def _wanted(self, changes: Mapping[str, object]) -> Sources:
        """The layers with that model in them. Raises SettingsError."""
        model = str(changes.get("model", self._held.now.model))
        own = {name: one for name, one in changes.items() if name in OF_ONE}
        found = self._held.sources.changed({"model": model}, model=model)
        return found.changed(own, only_model=True, model=model)

    def _stop(self) -> None:
        """Ends answers, and lets go of everything that points to the engine."""
        self.worker.closing_model()
        for live in self._stop_answers():
            live.wait_ended(LONGEST_END_S)
        with self._held.lock:
            self.engine = None

    def refuse(self, settings: Settings) -> None:
        """What files and numbers tell before anything is let go of. The model that runs counts as
        free: it goes first. Raises ModelError, SettingsError, OutOfMemory with what would fit.
        """
        from kvchat.device.memory import pick_device
        from kvchat.models.catalog import builtin, catalog
        from kvchat.models.fitting import refuse_too_large
        from kvchat.models.folder import examine, path_of
        from kvchat.models.load import chosen_dtype
        from kvchat.models.verdicts import refuse_failed

        path = path_of(settings.model)
        if settings.model == builtin().name:
            path = self.data_dir / "models" / builtin().name
            if not path.is_dir():
                return  # it is made when it is loaded
        elif settings.model in catalog() and not path.exists():
            entry = catalog()[settings.model]
            raise ModelError("model_not_here", name=entry.name, repository=entry.repository)
        folder = examine(path)
        refuse_failed(settings, self.data_dir)
        device = pick_device()
        allowed = self.allowed_bytes(settings)
        dtype = chosen_dtype(settings.dtype, folder, device)
        refuse_too_large(folder.path, dtype, settings.weights, allowed, device)

    def allowed_bytes(self, settings: Settings) -> int:
        """What may be used here once the model that runs is let go of, as last measured."""
        from kvchat.device.memory import pick_device, probe_for

        limits = limits_for(settings, pick_device())
        engine = self.engine
        if engine is not None:
            now = engine.last_snapshot
            return replace(now, budget=limits.budget, headroom=limits.headroom).told_bytes
        free = (probe_for(pick_device()).read().free - limits.headroom) // MIB * MIB
        return free if limits.budget is None else min(free, limits.budget)

    @cached_property
    def _capacities(self) -> dict[str, int]:
        from kvchat.device.host import HostProbe
        from kvchat.device.memory import pick_device, probe_for

        device = probe_for(pick_device()).read().total
        return {"device": device, "host": HostProbe().read().total}

    def capacities(self) -> dict[str, int]:
        """Bytes of memory that there are in all: of the device, and of the computer."""
        return self._capacities

    # --- what there is to choose from -------------------------------------------------------------

    @property
    def models_folder(self) -> Path:
        """Models that are put here stand in the list by themselves."""
        return self.data_dir / "models"

    def room(self, settings: Settings) -> Room:
        """The same, and what it comes from."""
        from kvchat.device.memory import pick_device
        from kvchat.models.outlook import Room

        device, allowed = pick_device(), max(0, self.allowed_bytes(settings))
        limits, total = limits_for(settings, device), self.capacities()["device"]
        if allowed == limits.budget:
            return Room(allowed, str(device), total, limits.headroom, limits.budget)
        others = max(0, total - limits.headroom - allowed)
        return Room(allowed, str(device), total, limits.headroom, None, others)

    def measured_costs(self, ref: str) -> dict[tuple[str, str], Costs]:
        """Of that model by its dtype and weights, if it is the one that runs."""
        engine, dtype = self.engine, self.dtype
        if engine is None or dtype is None or ref != self._held.running.model:
            return {}
        return {(dtype, self._held.running.weights): engine.costs}

    @property
    def dtype(self) -> str | None:
        """What the model that runs computes in, by name."""
        from kvchat.models.planned import TORCH_DTYPES

        engine = self.engine
        if engine is None:
            return None
        return next((n for n, one in TORCH_DTYPES.items() if one == engine.loaded.dtype), None)

    def offered(self) -> list[Offered]:
        from kvchat.models.offered import offered

        now = self._held.now
        return offered(self.data_dir, now.model_folders, now.model)

    def ways(self, ref: str, *, first: bool = False) -> list[Way]:
        """How a model would fit into what may be used here, the most exact precision first.
        `first`: only down to the first that fits. Raises ModelError.
        """
        from kvchat.device.memory import pick_device
        from kvchat.models.offered import ways

        settings, measured = self._held.for_model(ref), self.measured_costs(ref)
        allowed = self.allowed_bytes(settings)
        found = []
        for way in ways(ref, settings, self.data_dir, allowed, pick_device(), measured):
            found.append(way)
            if first and way.fits:
                break
        return found

    def why_not(self, ref: str) -> KVChatError | None:
        from kvchat.models.offered import why_not

        return why_not(ref)

    def check_folder(self, text: str) -> Path:
        """Raises ModelError."""
        from kvchat.models.offered import check_folder

        return check_folder(text)

    def close(self) -> None:
        self.worker.close()
        self.engine = None
