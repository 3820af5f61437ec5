"""What the cache tab asks for when it is opened: figures of all turns, timeline, ceilings."""

from typing import TYPE_CHECKING, Any

from kvchat.ui.calls.sent import chat

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations


class GaugeCalls:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    def turn_figures(self, sent: Any) -> dict[str, Any]:
        return {"turns": self._conversations.gauges.turns(chat(sent))}

    def timeline(self, sent: Any) -> dict[str, Any]:
        return self._conversations.gauges.timeline()

    def ceilings(self, sent: Any) -> dict[str, Any]:
        return self._conversations.gauges.ceilings()

    def measure_ceilings(self, sent: Any) -> dict[str, Any]:
        """Measures them anew as soon as nothing is asked."""
        return self._conversations.gauges.measure_again()
