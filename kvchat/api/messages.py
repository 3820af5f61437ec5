"""The messages of a request, brought into the shape of a chat.

That shape: one system text or none, then user and assistant by turns, a user message last. Leading
system and developer messages are joined, and neighbours of one role too, because a turn is one
question and one answer; nothing is left out by it. What cannot take this shape is refused.
"""

from collections.abc import Mapping
from typing import Any

from kvchat.api.values import listed, mapping, missing, text
from kvchat.errors import RequestError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NOT_OFFERED = ("tool_calls", "function_call", "audio")


def read_messages(value: object) -> list[dict[str, str]]:
    """Raises RequestError, naming the message: `messages[3].content`."""
    given = listed("messages", value)
    if not given:
        raise RequestError("api_empty", parameter="messages")
    joined: list[tuple[str, list[str]]] = []
    for place, one in enumerate(given):
        where = f"messages[{place}]"
        role, content = _message(where, mapping(where, one))
        before = joined[-1][0] if joined else None
        if role == "system" and before not in (None, "system"):
            raise RequestError("api_system_late", parameter=f"{where}.role")
        if role == "assistant" and before in (None, "system"):
            raise RequestError("api_user_first", parameter=f"{where}.role")
        if role == before:
            joined[-1][1].append(content)
        else:
            joined.append((role, [content]))
    if joined[-1][0] != "user":
        raise RequestError("api_user_last", parameter=f"messages[{len(given) - 1}].role")
    return [{"role": role, "content": "\n\n".join(parts)} for role, parts in joined]


def _message(where: str, one: Mapping[str, Any]) -> tuple[str, str]:
    if one.get("role") is None:
        raise missing(f"{where}.role")
    role = _ROLES.get(text(f"{where}.role", one["role"]))
    if role is None:
        raise RequestError("api_role", parameter=f"{where}.role")
    for name in _NOT_OFFERED:
        if one.get(name):
            raise RequestError("api_not_offered", parameter=f"{where}.{name}")
    if one.get("content") is None:
        raise missing(f"{where}.content")
    content = _content(f"{where}.content", one["content"])
    if role == "user" and not content.strip():
        raise RequestError("api_empty", parameter=f"{where}.content")
    return role, content


def _content(where: str, value: object) -> str:
    """A string, or a list of text parts, which stand on lines of their own."""
    if not isinstance(value, list):
        return text(where, value)
    return "\n".join(_part(f"{where}[{place}]", part) for place, part in enumerate(value))


def _part(where: str, value: object) -> str:
    part = mapping(where, value)
    if part.get("type") != "text":
        raise RequestError("api_only_text", parameter=f"{where}.type")
    return text(f"{where}.text", part.get("text"))
