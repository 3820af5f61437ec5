"""The settings that a person changed on the screen, kept in a file that a person can read."""

from collections.abc import Collection, Mapping
from pathlib import Path

from kvchat.errors import StoreError
from kvchat.files import replace_file
from kvchat.settings_sources import Saved


class SavedSettings:
    """`settings.toml` in the data folder; read at the next start below the flags."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path | None:
        """None where nothing was kept yet."""
        return self._path if self._path.is_file() else None

    def keep(
        self,
        changes: Mapping[str, object],
        resets: Collection[str] = (),
        *,
        model: str = "",
        only_model: bool = False,
    ) -> None:
        """Adds the changes to what is kept, and takes the resets out; flags of this start are not
        kept. `model`: the one that runs. Raises StoreError.
        """
        kept = Saved.read(self._path) if self._path.is_file() else Saved()
        kept = kept.changed(changes, resets, model, only_model=only_model)
        self._write(kept)

    def _write(self, kept: Saved) -> None:
        try:
            replace_file(self._path, kept.to_toml())
        except OSError as error:
            raise StoreError("settings_not_kept", why=error.strerror) from None
