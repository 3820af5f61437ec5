"""What a benchmark will measure and what it measured, in lines to read."""

from collections.abc import Sequence
from typing import Any

from kvchat.models.verdicts import LEAST_SAME_PERCENT, MOST_KL
from kvchat.units import format_size
from kvchat.wording import Language, say


def told_at_once(names: Sequence[str], others: Sequence[str], model: str, lang: Language) -> str:
    """What is measured and about how long that takes; `others` can be asked for."""
    said = say("bench.at_once", lang, names=", ".join(names), model=model)
    return f"{said} {say('bench.others', lang, others=', '.join(others))}" if others else said


def told(row: dict[str, Any], lang: Language) -> str:
    match row["name"]:
        case "fidelity":
            return " ".join((say("bench.fidelity", lang, **row), *_judged(row, lang)))
        case "cache":
            pair = f"{row['pair']} ({row['layers']})" if "layers" in row else row["pair"]
            size = format_size(row["limit_bytes"])
            return say("bench.cache", lang, **row | {"pair": pair}, size=size)
        case "attention":
            rates = {
                name: format_size(int(row[name]))
                for name in ("read_bytes_per_s", "copy_bytes_per_s")
            }
            return say("bench.attention", lang, **row | rates)
        case "ui":
            return say("bench.ui", lang, **row, size=format_size(row["frame_bytes"]))
        case "waste" | "planning":
            return say(f"bench.{row['name']}", lang, **row)
        case "requantize":
            return say("bench.requantize", lang, **row, freed=format_size(row["freed_bytes"]))
        case "documents" if row.get("part") == "reading":
            return say("bench.reading", lang, **row)
        case "documents" if row.get("part") == "reading_all":
            return say("bench.reading_all", lang, **row, size=format_size(row["children_bytes"]))
        case "documents" if row.get("part") == "finding":
            return say(f"bench.finding.{row['among']}", lang, **row)
        case "resume":
            return say("bench.resume", lang, **row, size=format_size(row["file_bytes"]))
        case _:
            return say("bench.row", lang, **row)


def _judged(row: dict[str, Any], lang: Language) -> list[str]:
    """Needles, and whether the formats are offered for this model."""
    said = [say("bench.needles" if row["needles_asked"] else "bench.needles_weak", lang, **row)]
    if row["passed"] is not None:
        bounds = {"kl": MOST_KL, "same_percent": LEAST_SAME_PERCENT}
        said.append(say("bench.passed" if row["passed"] else "bench.not_passed", lang, **bounds))
    return said
