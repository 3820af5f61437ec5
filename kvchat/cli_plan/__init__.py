"""`python app.py plan`: what a model and a text would take, item by item, and how long a text fits.

Needs no weights: a config.json is enough, or a name of the catalog. Loads nothing, allocates
nothing.
"""

import argparse
import json
from pathlib import Path

from kvchat.cli_plan.telling import as_json, as_text
from kvchat.errors import SettingsError
from kvchat.memory.formats import FORMATS, KNOWN
from kvchat.models.outlook import look, room_here
from kvchat.models.planned import find
from kvchat.models.verdicts import verdict_key, verdicts
from kvchat.planner.pairs import markdown_table
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
    formats = (args.key_format, args.value_format)
    known = verdicts(data_dir, verdict_key(settings), settings.layer_formats)
    outlook = look(planned, num_tokens, room_here(settings), settings, formats, known)
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
