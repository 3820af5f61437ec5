"""The settings that a person saved, as names and JSON values. Knows nothing of what they mean."""

import json
from collections.abc import Mapping
from typing import Any

from kvchat.store.base import Base


class SavedSettings(Base):
    def settings(self) -> dict[str, Any]:
        with self._database.read() as connection:
            rows = connection.execute("SELECT name, value FROM saved_settings ORDER BY rowid")
            return {row["name"]: json.loads(row["value"]) for row in rows}

    def save_settings(self, settings: Mapping[str, object]) -> None:
        """These and no others are saved from now on. Tuples come back as lists."""
        rows = [(name, json.dumps(value)) for name, value in settings.items()]
        with self._database.write() as connection:
            connection.execute("DELETE FROM saved_settings")
            connection.executemany("INSERT INTO saved_settings VALUES (?, ?)", rows)
