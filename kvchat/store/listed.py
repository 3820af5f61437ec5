"""What the list of chats says of each one beside its title. Knows no cache and no disk tier."""

import json
from typing import Any

from kvchat.store.base import Base

# Of the newest replies: how fast this machine reads is told by one of them.
_NEWEST = 64


class Listed(Base):
    def newest_figures(self) -> dict[str, dict[str, Any]]:
        """Of each chat, the figures of the newest reply."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT g.chat, g.figures FROM generations g JOIN"
                " (SELECT max(number) AS number FROM generations GROUP BY chat) n"
                " ON n.number = g.number"
            ).fetchall()
        return {row["chat"]: json.loads(row["figures"]) for row in rows}

    def figures_of_newest(self) -> list[dict[str, Any]]:
        """Of the newest replies of all chats, newest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT figures FROM generations ORDER BY number DESC LIMIT ?", (_NEWEST,)
            ).fetchall()
        return [json.loads(row["figures"]) for row in rows]
