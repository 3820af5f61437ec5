"""What the cache tab asks the stand-in: figures of its turns, a made-up past of the device, and
what the device can do at best, measured when it is told to.
"""

import time
from typing import Any

from kvchat.engine.timeline import COLUMNS

MEASURED = {
    "bytes_per_s": 360e9, "flops_per_s": 32e12, "device": "A card", "dtype": "bfloat16",
    "threads": 0,
}  # fmt: skip


class StandInGauges:
    """`talks`: the conversations that they belong to."""

    def __init__(self, talks: Any) -> None:
        self._talks = talks
        self.measured: dict[str, Any] | None = MEASURED | {"at_s": time.time()}
        self.num_measured = 0
        self.hangul_per_token = 0.62

    def turns(self, chat: str) -> list[dict[str, Any]]:
        return [
            {
                "turn": one.turn,
                "name": one.user_hash,
                "pinned": one.pinned,
                "left_out": one.left_out,
                "figures": one.figures,
            }
            for one in self._talks.history(chat)
        ]

    def timeline(self) -> dict[str, Any]:
        now = self._talks.frame(None)
        device, total = now["device"], now["device"]["total"]
        points = []
        for ago_s in range(600, 0, -2):
            other = device["other_processes"] + (2**28 if 200 < ago_s < 300 else 0)
            held = (other, now["weights_bytes"], now["runtime_bytes"], 2**26, (600 - ago_s) * 2**20)
            points.append((time.time() - ago_s, *held, total - sum(held)))
        return {"columns": COLUMNS, "points": points}

    def ceilings(self) -> dict[str, Any]:
        return {"stage": "done" if self.measured else "waiting", "measured": self.measured}

    def measure_again(self) -> dict[str, Any]:
        self.num_measured += 1
        self.measured = MEASURED | {"at_s": time.time()}
        return self.ceilings()
