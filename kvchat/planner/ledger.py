"""What was done to which turn, and why: entries of codes and arguments, which each language words
itself.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Undo = Literal["bring_back", "raise", "read_again"]
"""How a measure is taken back: moved back from the host, stored as well as it is held anywhere, or
read again from the text. All of it with the next question, as far as there is room.
"""


def entry(
    code: str,
    arguments: dict[str, Any],
    reason: str,
    bytes_predicted: int,
    bytes_measured: int | None,
    turns: tuple[str, ...] = (),
    *,
    documents: Sequence[dict[str, Any]] = (),
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    lost_tokens: int = 0,
    undo: Undo | None = None,
) -> dict[str, Any]:
    """One ledger entry as DESIGN §9 has it. `turns`: hashes of the user messages concerned;
    `documents`: see `pages`. `before` and `after`: see `stored`; None where nothing was stored, or
    is any more. `lost_tokens`: those that the model does not see from now on. `undo`: None where
    nothing can be, or need be, taken back.
    """
    return {
        "at_s": time.time(),
        "code": code,
        "arguments": arguments,
        "turns": list(turns),
        "documents": list(documents),
        "before": before,
        "after": after,
        "bytes_predicted": bytes_predicted,
        "bytes_measured": bytes_measured,
        "lost_tokens": lost_tokens,
        "reason": reason,
        "undo": undo,
    }


def pages(document: str, numbers: Iterable[int] | None = None) -> dict[str, Any]:
    """A document, or only pages of it, counted from 1."""
    return {"document": document, "pages": None if numbers is None else sorted(set(numbers))}


def stored(formats: Iterable[str], tier: str) -> dict[str, Any]:
    """How text is kept: pairs of KV formats, and `device`, `host` or `disk`."""
    return {"formats": sorted(set(formats)), "tier": tier}
