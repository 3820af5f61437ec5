"""What a reply cost, as it is kept and shown."""

from dataclasses import asdict
from typing import Any

from kvchat.engine.events import Figures

# What a reply's figures say beside what was counted.
RATES = (
    "decode_tokens_per_s",
    "decode_bytes_per_s",
    "prefill_tokens_per_s",
    "prefill_flops_per_s",
)


def figures_row(figures: Figures) -> dict[str, Any]:
    rates = {name: getattr(figures, name) for name in RATES}
    return asdict(figures) | rates
