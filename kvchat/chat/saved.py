"""The settings that a person changed on the screen, kept in a file that a person can read."""

from collections.abc import Mapping
from pathlib import Path

from kvchat.errors import StoreError
from kvchat.files import replace_file
from kvchat.settings import Settings, changed, read_file, to_toml


class SavedSettings:
    """`settings.toml` in the data folder; read at the next start below the flags."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, now: Settings, changes: Mapping[str, object]) -> None:
        """Adds the changes to what is kept; flags of this start are not kept. Raises StoreError."""
        kept = dict(read_file(self._path)) if self._path.is_file() else {}
        kept |= {name: getattr(now, name) for name in changes}
        try:
            replace_file(self._path, to_toml(changed(Settings(), kept)))
        except OSError as error:
            raise StoreError("settings_not_kept", why=error.strerror) from None
