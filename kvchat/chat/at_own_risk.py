"""A question that was refused for want of memory is sent all the same, because a person says so.

What is exact stays refused: the model's length, and weights and KV over a budget. The headroom is a
margin, and what the system calls free may change the next moment: the prompt is made to fit as if
all that is free could be had, and runs under the guard, which takes of the headroom what it must or
ends the answer with the numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvchat.chat.admit import Admitted, Told, admit
from kvchat.chat.asking import Admit
from kvchat.errors import OutOfMemory
from kvchat.planner.plan import Snapshot
from kvchat.settings import Settings

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

REFUSED = "prompt_over_memory"


def without_margin(now: Snapshot) -> Snapshot:
    """As if nothing had to be left free, and nothing had run out lately."""
    return replace(now, headroom=0, found_bytes=None)


def at_own_risk(usual: Admit) -> Admit:
    """As usual where that fits; else without the margin. Raises what admitting raises."""

    def admitted(told: Told, engine: Engine, settings: Settings) -> Admitted:
        try:
            return usual(told, engine, settings)
        except OutOfMemory as error:
            if error.code != REFUSED:
                raise
        now = without_margin(engine.last_snapshot)
        return admit(told, engine.loaded, settings, now, engine.costs)

    return admitted
