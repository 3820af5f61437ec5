"""The branch of a chat that is shown: its questions, and the versions of each."""

from collections.abc import Sequence

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.exchanges import versions
from kvchat.chat.rows import Exchange
from kvchat.errors import RequestError
from kvchat.store.records import Message
from kvchat.store.store import Store


class Branch:
    def __init__(self, store: Store, chat: str) -> None:
        self._store = store
        self._chat = chat

    def questions(self) -> list[Message]:
        return [one for one in self._store.messages(self._chat) if one.role == "user"]

    def question(self, turn: int, name: str | None = None) -> Message:
        """The turn's, counted from 1. `name`: its hash, where the caller saw it. Raises
        RequestError where there is no such turn, or another one by now.
        """
        questions = self.questions()
        if not 1 <= turn <= len(questions):
            raise RequestError("turn_gone", turn=turn)
        if name is not None and questions[turn - 1].hash != name:
            raise RequestError("turn_changed", turn=turn)
        return questions[turn - 1]

    def versions(self, question: Message) -> list[str]:
        return versions(self._store, self._chat, question)


def with_pending(exchanges: Sequence[Exchange], live: LiveAnswer | None) -> list[Exchange]:
    """A question that still waits for its documents stands at the end."""
    if live is None or live.turn != len(exchanges) + 1:
        return list(exchanges)
    pending = Exchange(live.turn, "", live.question, (), None, None, None, None, [], False, 1, 1)
    return [*exchanges, pending]
