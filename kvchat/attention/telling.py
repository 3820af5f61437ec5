"""A row of `choose.describe` as a person reads it. Knows no backend; imports no torch."""

from collections.abc import Mapping
from typing import Any

from kvchat.wording import Language, say


def told(row: Mapping[str, Any], lang: Language) -> str:
    """Which backend runs these layers, and why it is not the fast one where it is not."""
    named = {part: say(f"attention.{row[part]}", lang) for part in ("decode", "prefill")}
    sentence = say("attention.row", lang, **{**row, **named})
    if row["why"] is None:
        return sentence
    return sentence + say("attention.slow", lang, why=say(f"attention.why.{row['why']}", lang))
