"""`python app.py plan`: what a model and a text would take, item by item, and how long a text fits.

Needs no weights: a config.json is enough, or a name of the catalog. Loads nothing, allocates
nothing.
"""

import argparse
import json
from pathlib import Path

import torch

from kvchat.cli_plan.telling import as_json, as_text
from kvchat.errors import SettingsError
from kvchat.memory.footprint import Holding, footprint_of
from kvchat.memory.formats import FORMATS, KNOWN, layer_pairs
from kvchat.memory.pairs import markdown_table, pair_rows, pairs
from kvchat.models.outlook import Outlook, room_here
from kvchat.models.planned import DTYPE_BYTES, find
from kvchat.settings import Settings
from kvchat.wording import Language

# Longer texts than any model reads: beyond it a number is a mistake.
MOST_TOKENS = 2**31


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Exit code 0, whether the text fits or not. Raises SettingsError and ModelError for bad
    input.
    """
    _check(args)
    planned = find(settings, data_dir)
    if args.markdown:
        print(markdown_table([(planned.spec.name, planned.spec)]), end="")
        return 0
    num_tokens = planned.spec.max_positions if args.context is None else args.context
    room = room_here(settings)
    holding = Holding(
        settings.prefill_chunk,
        args.key_format or "fp",
        args.value_format or "fp",
        DTYPE_BYTES[planned.dtype],
        torch.device(room.device).type,
        settings.sink_tokens,
        layer_pairs(settings.layer_formats, len(planned.spec.layers)),
    )
    wanted = pairs(args.key_format, args.value_format)
    outlook = Outlook(
        planned,
        num_tokens,
        room,
        holding,
        footprint_of(planned.spec, num_tokens, holding),
        tuple(pair_rows(planned.spec, num_tokens, room.usable_bytes, holding, wanted)),
        settings.layer_formats,
    )
    if args.json:
        print(json.dumps(as_json(outlook), ensure_ascii=False))
    else:
        print("\n".join(as_text(outlook, lang)))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.context is not None and not 1 <= args.context <= MOST_TOKENS:
        raise SettingsError("plan_context", value=args.context, most=f"{MOST_TOKENS:,}")
    for name in (args.key_format, args.value_format):
        if name is not None and name not in KNOWN:
            raise SettingsError("plan_format", name=name, known=", ".join(FORMATS))
