"""What a tab asks for, checked: it comes from a browser, where anything may imitate us."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvchat.errors import RequestError
from kvchat.store.base import clean
from kvchat.ui.transcript import TURNS_SHOWN

LARGEST = 2**53 - 1
"""The largest count that a browser can say exactly."""

Kind = Literal[
    "open", "ask", "regenerate", "anyway", "less_repeating", "edit", "switch", "remove", "continue"
]


@dataclass(frozen=True, slots=True)
class Asked:
    """One wish of one tab. `tab`: the tab's own name for itself; `number`: it counts its wishes
    from 1, 0 where it does not; `shown`: turns to draw; `name`: of the turn that the tab shows
    there, None where it does not say.
    """

    kind: Kind
    tab: str
    chat: str | None
    text: str
    turn: int
    sibling: int
    shown: int
    name: str | None = None
    number: int = 0


def read_asked(sent: object) -> Asked:
    """Raises RequestError for anything that our own scripts would not send."""
    if not isinstance(sent, dict) or sent.get("kind") not in get_args(Kind):
        raise RequestError("ui_request")
    return Asked(
        kind=sent["kind"],
        tab=text_of(sent, "tab"),
        chat=text_of(sent, "chat") or None,
        text=text_of(sent, "text"),
        turn=count_of(sent, "turn"),
        sibling=count_of(sent, "sibling"),
        shown=max(TURNS_SHOWN, count_of(sent, "shown")),
        name=text_of(sent, "name") or None,
        number=count_of(sent, "number"),
    )


def text_of(sent: Any, name: str) -> str:
    """The text sent under a name, or an empty one. Raises RequestError for anything but text."""
    value = sent.get(name, "") if isinstance(sent, dict) else None
    if value is None and isinstance(sent, dict):
        return ""
    if not isinstance(value, str):
        raise RequestError("ui_request")
    return clean(value)  # JSON can say half a character, which nothing else can write


def count_of(sent: Any, name: str) -> int:
    """The number sent under a name, or 0. Raises RequestError for anything but a count."""
    value = sent.get(name, 0) if isinstance(sent, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise RequestError("ui_request")
    return value
