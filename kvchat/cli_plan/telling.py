"""A plan as a person reads it, and as a script does. Computes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any
from unicodedata import east_asian_width

from kvchat.arch.spec import ModelSpec
from kvchat.models.outlook import Outlook
from kvchat.units import format_size
from kvchat.wording import Language, say


def as_json(outlook: Outlook) -> dict[str, Any]:
    planned, spec = outlook.planned, outlook.planned.spec
    guessed = ["weights"] if planned.weights_from == "config" else []
    return {
        "type": "plan",
        "model": spec.name,
        "dtype": planned.dtype,
        "weights_from": planned.weights_from,
        "estimated": [*guessed, "activations"],
        "max_positions": spec.max_positions,
        "context": outlook.num_tokens,
        "beyond_model": outlook.num_tokens > spec.max_positions,
        "layers": layer_groups(spec),
        "prefill_chunk": outlook.limits.prefill_chunk,
        "layer_formats": outlook.layer_formats,
        "sink_tokens": outlook.limits.storing.sink_tokens,
        "formats": str(outlook.pair).split("/"),
        "footprint": asdict(outlook.expected) | {"total": outlook.expected.total},
        "room": asdict(outlook.room),
        "fits": not outlook.short_by_bytes,
        "short_by_bytes": outlook.short_by_bytes,
        "longest": outlook.fits.row(),
        "pairs": [asdict(row) for row in outlook.rows],
        "failed": [str(pair) for pair in outlook.failed],
    }


def layer_groups(spec: ModelSpec) -> list[dict[str, Any]]:
    """Layers of one kind and shape together, in order of the first one."""
    found: dict[str, dict[str, Any]] = {}
    for layer in spec.layers:
        about = asdict(layer) | {"shares_with": layer.shares_with is not None}
        found.setdefault(repr(about), {"num_layers": 0} | about)["num_layers"] += 1
    return list(found.values())


def as_text(outlook: Outlook, lang: Language) -> Iterator[str]:
    planned, spec = outlook.planned, outlook.planned.spec
    about = say(f"plan.weights_from.{planned.weights_from}", lang)
    facts = {"name": spec.name, "dtype": planned.dtype, "device": outlook.room.device}
    yield say("plan.model", lang, about=about, **facts)
    for group in layer_groups(spec):
        yield "  " + _layer_line(group, lang)
    yield say("plan.reads", lang, most=f"{spec.max_positions:,}")
    if outlook.num_tokens > spec.max_positions:
        yield say("plan.beyond", lang, tokens=f"{outlook.num_tokens:,}")
    yield ""
    chunk = outlook.limits.prefill_chunk
    yield say("plan.text", lang, tokens=f"{outlook.num_tokens:,}", chunk=chunk, format=outlook.pair)
    if outlook.layer_formats:
        yield say("plan.layer_formats", lang, layers=outlook.layer_formats)
    yield from _items(outlook, lang)
    yield _verdict(outlook, lang)
    if outlook.fits.most_tokens:
        yield say("plan.longest", lang, fits=fits_line(outlook.fits.row(), lang))
    yield ""
    yield say("plan.table", lang)
    yield from _table(outlook, lang)
    if outlook.failed:
        yield say("plan.failed", lang, pairs=", ".join(map(str, outlook.failed)))


def fits_line(fits: Mapping[str, Any], lang: Language) -> str:
    """How long a text fits, a row of `Fits`, in the words that the screen has for it
    (`K.fitsSaid`).
    """
    stored, tokens = fits["stored"], f"{fits['tokens']:,}"
    code = "fits.as_computed" if stored is None else "fits.stored"
    said = say(code, lang, tokens=tokens, format=(stored or "").upper())
    if fits["most_tokens"] <= fits["tokens"]:
        return said
    pair, helps = fits["pair"], fits["helps"]
    parts = helps if pair is None else ["requantize", *helps]
    how = [say(f"fits.how.{one}", lang, format=(pair or "").upper()) for one in parts]
    most, joined = f"{fits['most_tokens']:,}", say("fits.and", lang).join(how)
    return say("fits.more", lang, fits=said, most=most, how=joined)


def _layer_line(group: dict[str, Any], lang: Language) -> str:
    kind = "shared" if group["shares_with"] else group["kind"]
    size = format_size(group["recurrent_bytes"])
    return say(f"plan.layer.{kind}", lang, **group | {"size": size})


def _items(outlook: Outlook, lang: Language) -> Iterator[str]:
    estimated = {say("footprint.activations", lang)}
    if outlook.planned.weights_from == "config":
        estimated.add(say("footprint.weights", lang))
    for name, size in outlook.expected.table(lang):
        mark = say("plan.estimate", lang) if name in estimated else ""
        yield f"{_right(size, 14)}  {name}{mark}"


def _verdict(outlook: Outlook, lang: Language) -> str:
    room = outlook.room
    if room.budget_bytes is None:
        facts = {
            "total": format_size(room.total_bytes),
            "headroom": format_size(room.headroom_bytes),
        }
        where = say("plan.room.device", lang, device=room.device, **facts)
    else:
        where = say("plan.room.budget", lang)
    code = "plan.fits" if not outlook.short_by_bytes else "plan.short"
    usable, short = format_size(room.usable_bytes), format_size(outlook.short_by_bytes)
    return say(code, lang, usable=usable, where=where, short=short)


_COLUMNS = {"pair": 10, "token": 12, "kv": 12, "total": 12, "most": 12}


def _table(outlook: Outlook, lang: Language) -> Iterator[str]:
    """One line a pair: what one more token takes, this text's KV, the longest text that fits."""
    yield _line([say(f"plan.column.{column}", lang) for column in _COLUMNS])
    for row in outlook.rows:
        cells = [
            f"{row.key_format}/{row.value_format}",
            f"{row.token_bytes:,}",
            format_size(row.kv_bytes),
            format_size(row.total_bytes),
            f"{row.largest_context:,}",
        ]
        yield _line(cells)


def _line(cells: list[str]) -> str:
    widths = _COLUMNS.values()
    return "  ".join(_right(cell, width) for cell, width in zip(cells, widths, strict=True))


def _right(text: str, width: int) -> str:
    """Padded on the left to so many columns of a terminal, where a Hangul syllable takes two."""
    taken = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
    return " " * max(0, width - taken) + text
