"""Summaries of turns that no longer fit, as they were written once for a chat.

A summary tells what its messages said: where a turn is deleted, all of the chat's go with it.
"""

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.records import Summary


class Summaries(Base):
    def keep_summary(self, chat: str, summary: Summary) -> None:
        """In the place of an earlier one of that name. Raises StoreError `chat_gone`."""
        with self._database.write() as connection:
            tree.current_branch(connection, chat)
            connection.execute(
                "INSERT OR REPLACE INTO summaries VALUES (?, ?, ?, ?, ?)",
                (
                    chat,
                    summary.name,
                    summary.num_messages,
                    clean(summary.text),
                    self._clock(),
                ),
            )

    def summaries(self, chat: str) -> dict[str, Summary]:
        """By name, those of the most messages first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT name, num_messages, text FROM summaries WHERE chat = ?"
                " ORDER BY num_messages DESC, name",
                (chat,),
            )
            return {row["name"]: Summary(*row) for row in rows}
