"""What one text holds in the cache, span by span, counted from its block tables; and the whole
frame.

    span bytes = its tokens' share of each block still held, and of the hot window, per group
    spans + slack + hot windows = kv device bytes; what a span has on the host is told apart
    weights + kv + activations + runtime + other processes + free = total

`slack` is free places in slabs and, of it, what is idle: sealed blocks and hot windows kept for
reuse.
`hot_window_bytes` are places of the open text's hot window that hold no token yet.
The frame is a plain dict, as `--json` and `/api/memory` give it (DESIGN §9).
"""

from collections.abc import Sequence as Many
from dataclasses import asdict, dataclass
from typing import Any

from kvchat.device.memory import DeviceMemory
from kvchat.kvcache.blocks import FP, Tier
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair


@dataclass(frozen=True, slots=True)
class Measured:
    """What the frame takes from elsewhere: the device, the weights, what a forward needs."""

    device: DeviceMemory
    budget: int | None
    headroom: int
    weight_bytes: int
    library_bytes: int
    activation_bytes: int
    capacity_tokens: int
    disk_bytes: int = 0
    activations_known: bool = False


def held_bytes(sequence: Sequence, start: int, stop: int, tier: Tier = "device") -> dict[str, int]:
    """A tier's bytes of the tokens [start, stop) by pair of formats: those that a sliding window
    has left count nothing, and what is not sealed yet is as computed, on the device.
    """
    found: dict[str, int] = {}

    def add(pair: FormatPair, num_bytes: int) -> None:
        if num_bytes:
            found[str(pair)] = found.get(str(pair), 0) + num_bytes

    num_hot = max(0, min(stop, sequence.num_cached) - max(start, sequence.start))
    for geometry, table in zip(sequence.pool.geometries, sequence.tables, strict=True):
        last = min(len(table), -(-stop // BLOCK_TOKENS))
        for i in range(start // BLOCK_TOKENS, last):
            block = table[i]
            if block is not None and block.tier == tier:
                first = i * BLOCK_TOKENS
                num = min(stop, first + BLOCK_TOKENS) - max(start, first)
                add(block.pair, num * (block.nbytes // BLOCK_TOKENS))
        if tier == "device":
            add(FP, num_hot * geometry.bytes_per_token)
    return found


def evicted_tokens(sequence: Sequence, start: int, stop: int) -> int:
    """Of these tokens, those that layers without a window do without."""
    ranges = ((i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS) for i in sequence.evicted)
    return sum(max(0, min(stop, last) - max(start, first)) for first, last in ranges)


def is_shared(sequence: Sequence, start: int, stop: int) -> bool:
    """Whether another text holds one of these tokens' blocks as well."""
    first, last = start // BLOCK_TOKENS, -(-stop // BLOCK_TOKENS)
    return any(
        block is not None and block.ref_count > 1
        for table in sequence.tables
        for block in table[first:last]
    )


def span_rows(sequence: Sequence | None, spans: Many[Span]) -> list[dict[str, Any]]:
    """One row a span; the last span reaches to the newest token in the cache. `bytes` and
    `formats` are the device's; of its tokens `evicted_tokens` are not attended any more.
    """
    rows = []
    for i, span in enumerate(spans):
        stop = span.stop
        if sequence is not None and i == len(spans) - 1:
            stop = max(stop, sequence.num_cached)
        formats, on_host, num_evicted = dict[str, int](), 0, 0
        if sequence is not None:
            formats = held_bytes(sequence, span.start, stop)
            on_host = sum(held_bytes(sequence, span.start, stop, "host").values())
            num_evicted = evicted_tokens(sequence, span.start, stop)
        held = sum(formats.values())
        rows.append(
            {
                "kind": span.kind,
                "turn": span.turn,
                "document": span.name if span.kind == "document" else None,
                "name": span.name,
                "tokens": stop - span.start,
                "bytes": held,
                "formats": formats,
                "host_bytes": on_host,
                "evicted_tokens": num_evicted,
                "tier": _tier_of(held, on_host),
                "shared": sequence is not None and is_shared(sequence, span.start, stop),
                "pinned": span.kind == "system",
            }
        )
    return rows


def _tier_of(device_bytes: int, host_bytes: int) -> str | None:
    if device_bytes and host_bytes:
        return "mixed"
    return "device" if device_bytes else "host" if host_bytes else None


def kv_row(pool: Pool, sequence: Sequence | None, span_bytes: int) -> dict[str, int]:
    """The pool's own account. Holds whatever the spans are: the rest is slack or hot window."""
    hot = sum(window.nbytes for window in sequence.hot) if sequence is not None else 0
    in_hot = 0
    if sequence is not None and sequence.hot:
        in_hot = sum(g.bytes_per_token for g in pool.geometries) * sequence.num_hot
    return {
        "device_bytes": pool.device_bytes,
        "host_bytes": pool.host_bytes,
        "hot_window_bytes": hot - in_hot,
        "slack_bytes": pool.device_bytes - span_bytes - (hot - in_hot),
        "idle_bytes": pool.idle_bytes,
    }


def make_frame(
    pool: Pool, sequence: Sequence | None, spans: Many[Span], measured: Measured
) -> dict[str, Any]:
    """The frame without what only the conversation knows (runtime, documents, ledger, figures)."""
    rows = span_rows(sequence, spans)
    kv = kv_row(pool, sequence, sum(row["bytes"] for row in rows))
    # An estimate: a text whose newest turn is short may be longer than that.
    kv |= {"capacity_tokens": measured.capacity_tokens, "disk_bytes": measured.disk_bytes}
    return on_device(
        {
            "type": "frame",
            "device": {"budget": measured.budget, "headroom": measured.headroom},
            "weights_bytes": measured.weight_bytes,
            "library_bytes": measured.library_bytes,
            "activations_bytes": measured.activation_bytes,
            "estimated": [] if measured.activations_known else ["activations_bytes"],
            "kv": kv,
            "spans": rows,
            "turns": [row for row in rows if row["kind"] == "turn"],
        },
        measured.device,
    )


def on_device(frame: dict[str, Any], device: DeviceMemory) -> dict[str, Any]:
    """The frame with that reading of the device: while a step computes, nothing else moves."""
    held = frame["weights_bytes"] + frame["kv"]["device_bytes"] + frame["library_bytes"]
    residue = device.total - device.free - device.other_processes - held
    activations = max(0, min(frame["activations_bytes"], residue))
    # Weights that the system maps from a file are not all resident: the others' share is what
    # remains, then what is free, so that the items always sum to the total.
    others = device.other_processes + min(0, residue)
    guessed = [one for one in frame["estimated"] if one == "activations_bytes"]
    return frame | {
        "at_s": device.at_s,
        "device": frame["device"]
        | {
            "name": device.device,
            "total": device.total,
            "free": device.free + min(0, others),
            "other_processes": max(0, others),
            "shared": device.shared,
            "age_s": device.age_s,
            "programs": [asdict(one) for one in device.programs],
        },
        "activations_bytes": activations,
        "runtime_bytes": max(0, residue) - activations,
        "estimated": [*device.estimated, *guessed],
    }
