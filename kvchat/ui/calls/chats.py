"""Chats, their list, and what an answer that is under way can be told."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.attention.telling import told as attention
from kvchat.chat.reasoning import without_reasoning
from kvchat.errors import RequestError
from kvchat.models.catalog import catalog
from kvchat.ui.asked import count_of, text_of
from kvchat.ui.calls.sent import chat, uploaded
from kvchat.ui.following import Following
from kvchat.ui.words import problem, sentence
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

# Notices that say nothing new to those who read a language.
_FOR_OTHERS: dict[Language, tuple[str, ...]] = {"en": ("notice.english_only",), "ko": ()}


class ChatCalls:
    def __init__(
        self, conversations: "Conversations", following: Following, lang: Language
    ) -> None:
        self._conversations = conversations
        self._following = following
        self._lang = lang

    def status(self, sent: Any) -> dict[str, Any]:
        found = dict(self._conversations.status())
        found["english_only"] = "notice.english_only" in found["notices"]
        said = [one for one in found["notices"] if one not in _FOR_OTHERS[self._lang]]
        words = [sentence(one, self._lang, proposal=_proposal()) for one in said]
        rows = found["attention"]
        slow = [attention(row, self._lang) for row in rows if not row["fast"]]
        found["notices"] = [*filter(None, words), *slow]
        found["attention"] = [attention(row, self._lang) for row in rows]
        found["error"] = problem(found.get("error"), self._lang)
        return found

    def chats(self, sent: Any) -> dict[str, Any]:
        rows = self._conversations.chats(text_of(sent, "query"))
        return {"chats": [asdict(row) for row in rows]}

    def rename(self, sent: Any) -> dict[str, Any]:
        self._conversations.rename(chat(sent), " ".join(text_of(sent, "title").split()))
        return {}

    def delete(self, sent: Any) -> dict[str, Any]:
        self._conversations.delete(chat(sent))
        return {}

    def tidy(self, sent: Any) -> dict[str, Any]:
        """A chat that was left: nothing of it stays where it was nothing."""
        return {"gone": self._conversations.drop_if_nothing(chat(sent))}

    def find(self, sent: Any) -> dict[str, Any]:
        """Shows the branch on which a message stands; the turn, and how many there are."""
        turn = self._conversations.show(chat(sent), text_of(sent, "message"))
        return {"turn": turn, "turns": len(self._conversations.history(chat(sent)))}

    def import_chat(self, sent: Any) -> dict[str, Any]:
        path = uploaded(text_of(sent, "path"))
        try:
            return {"chat": self._conversations.carrying.bring(path.read_bytes())}
        except OSError:
            raise RequestError("ui_upload") from None
        finally:
            path.unlink(missing_ok=True)

    def stop(self, sent: Any) -> dict[str, Any]:
        self._conversations.stop(chat(sent))
        return {}

    def leave(self, sent: Any) -> dict[str, Any]:
        self._following.leave(text_of(sent, "tab"), count_of(sent, "number"))
        return {}

    def slower(self, sent: Any) -> dict[str, Any]:
        self._following.slower(text_of(sent, "tab"))
        return {}

    def source(self, sent: Any) -> dict[str, Any]:
        """The texts of a turn as they were written, for copying and editing; of a reply the answer,
        where there is one beside the reasoning.
        """
        turn = sent.get("turn") if isinstance(sent, dict) else None
        for one in self._conversations.history(chat(sent)):
            if one.turn == turn:
                reply = one.reply or ""
                return {"text": one.text, "reply": without_reasoning(reply) or reply}
        raise RequestError("ui_request")


def _proposal() -> str:
    """The smallest model of the catalog that speaks Korean."""
    return next((one.name for one in catalog().values() if one.serves_korean), "")
