"""The calculator: any model, text, formats and card. Computes with what `plan` computes with."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kvchat.errors import ModelError
from kvchat.memory.formats import FormatPair, pairs
from kvchat.memory.verdicts import failure_of
from kvchat.settings import Settings, changed
from kvchat.settings_schema import FORMAT_PAIRS
from kvchat.ui.asked import count_of, text_of
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations
    from kvchat.models.outlook import Outlook, Room
    from kvchat.models.planned import Planned

MOST_TOKENS = 2**31
_POINTS = 17  # of a curve
_LARGEST_CONFIG = 2**20


class WhatIfCalls:
    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations

    def whatif(self, sent: Any) -> dict[str, Any]:
        """`card`: bytes of a card, 0 for this machine. `pair`: empty for what the settings say.
        `all`: every pair of formats, not only those of the settings. Raises ModelError and
        SettingsError.
        """
        from kvchat.models.offered import layers_of
        from kvchat.models.outlook import look, room_on_card
        from kvchat.models.verdicts import verdict_key, verdicts
        from kvchat.planner.pairs import pair_rows

        card, loading = count_of(sent, "card"), self._conversations.loading
        settings = self._settings(sent)
        room = room_on_card(card) if card else loading.room(settings)
        planned = self._planned(sent, settings, room)
        num_tokens = min(count_of(sent, "context") or planned.spec.max_positions, MOST_TOKENS)
        settings = replace(settings, layer_formats=layers_of(planned, settings.layer_formats))
        asked = text_of(sent, "pair")
        names = asked and FormatPair.parse(asked)
        formats = (names.key.name, names.value.name) if names else (None, None)
        is_pasted = bool(text_of(sent, "config").strip())  # nothing was measured of that
        key, layers = verdict_key(settings), settings.layer_formats
        known = {} if is_pasted else verdicts(loading.data_dir, key, layers)
        running = {} if card else loading.measured_costs(settings.model)
        measured = running.get((planned.dtype, settings.weights))
        shown = look(planned, num_tokens, room, settings, formats, known, measured)
        rows = pair_rows(
            shown.costs,
            num_tokens,
            shown.limits.prefill_chunk,
            room.usable_bytes,
            _pairs(sent.get("all") is True),
        )

        def has_failed(pair: FormatPair) -> bool:
            return failure_of(pair, known) is not None

        return {
            "model": planned.spec.name,
            "dtype": planned.dtype,
            "weights_from": planned.weights_from,
            "max_positions": planned.spec.max_positions,
            "context": num_tokens,
            "pair": str(shown.pair),
            "failed": has_failed(shown.pair),
            "weights": settings.weights,
            "footprint": asdict(shown.expected) | {"total": shown.expected.total},
            "longest": shown.fits.row(),
            "short_by_bytes": shown.short_by_bytes,
            "room": asdict(room),
            "rows": [
                asdict(row)
                | {
                    "short_by_bytes": max(0, row.total_bytes - room.usable_bytes),
                    "failed": has_failed(FormatPair.parse(f"{row.key_format}/{row.value_format}")),
                }
                for row in rows
            ],
            "chart": _chart(shown, has_failed),
        }

    def _settings(self, sent: Any) -> Settings:
        """What holds for the model that is asked about, in the precision that is."""
        names = ("model", "dtype", "weights")
        asked = {name: text_of(sent, name) for name in names if text_of(sent, name)}
        held = self._conversations.held
        return changed(held.for_model(asked["model"]) if "model" in asked else held.now, asked)

    def _planned(self, sent: Any, settings: Settings, room: "Room") -> "Planned":
        from kvchat.models.planned import find, from_config

        kind = room.device.partition(":")[0]
        pasted = text_of(sent, "config")
        if pasted.strip():
            return from_config(
                _config(pasted), text_of(sent, "name") or "config.json", settings, kind
            )
        return find(settings, self._conversations.loading.data_dir, kind)


def _config(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[:_LARGEST_CONFIG])
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ModelError("config_unreadable", path="config.json", why=why) from None
    if not isinstance(found, dict):
        raise ModelError("config_unreadable", path="config.json", why="no JSON object")
    return found


def _pairs(every: bool) -> list[tuple[str, str]]:
    if every:
        return pairs()
    found = (FormatPair.parse(one) for one in FORMAT_PAIRS)
    return [(one.key.name, one.value.name) for one in found]


def _chart(outlook: "Outlook", has_failed: Callable[[FormatPair], bool]) -> dict[str, Any]:
    """Bytes in all against the length of a text, in each pair of formats that settings may name, as
    far as the longest that fits in the chosen one.
    """
    from kvchat.models.outlook import curve

    longest = max(outlook.planned.spec.max_positions, outlook.num_tokens)
    costs = outlook.costs.stored_in(outlook.pair)
    most = costs.largest_tokens(outlook.room.usable_bytes, outlook.limits.prefill_chunk)
    longest = min(longest, max(4 * outlook.num_tokens, 8192, most + most // 8))
    contexts = [max(1, longest * i // (_POINTS - 1)) for i in range(_POINTS)]
    lines = [
        {
            "pair": (name := f"{pair[0]}/{pair[1]}"),
            "bytes": curve(outlook, pair, contexts),
            "failed": has_failed(FormatPair.parse(name)),
        }
        for pair in _pairs(every=False)
    ]
    return {"contexts": contexts, "lines": lines}
