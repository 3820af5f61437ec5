"""What was done to which turn, and why: entries of codes and arguments, which each language words
itself.
"""

import time
from typing import Any


def entry(
    code: str,
    arguments: dict[str, Any],
    reason: str,
    bytes_predicted: int,
    bytes_measured: int | None,
    turns: tuple[str, ...] = (),
) -> dict[str, Any]:
    """One ledger entry as DESIGN §9 has it. `turns`: hashes of the user messages concerned."""
    return {
        "at_s": time.time(),
        "code": code,
        "arguments": arguments,
        "turns": list(turns),
        "bytes_predicted": bytes_predicted,
        "bytes_measured": bytes_measured,
        "reason": reason,
    }
