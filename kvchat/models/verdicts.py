"""Which formats of the KV cache a model was measured with on this machine, and how well it did.

One JSON file in the data folder, not a table of the store: `plan` and a second program read it
while another holds the folder, and a benchmark writes it then. What was measured is kept; whether
that is enough is decided when it is read. Knows no engine and no measuring.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import StoreError

# The bounds within which a format is offered. Between a little more than what K4/V4 with its hot
# window costs the smallest model (DESIGN.md §12), and less than what the library's int4 cache does.
MOST_KL = 0.02
LEAST_SAME_PERCENT = 94.0

_NAME = "verdicts.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model read one text twice: as computed, and with blocks in `pair`.

    kl: mean divergence of the next token's distribution, in nats; same_percent: how often the
    likeliest token is the same; perplexity_percent: the change of perplexity; num_scored: tokens
    that these are means over.
    """

    pair: str
    kl: float
    same_percent: float
    perplexity_percent: float
    num_scored: int
    text: str
    measured_at_s: float

    @property
    def passed(self) -> bool:
        return self.kl <= MOST_KL and self.same_percent >= LEAST_SAME_PERCENT


def verdicts(data_dir: Path, model: str) -> dict[str, Verdict]:
    """What is known of a model, by pair of formats; nothing where the file cannot be read."""
    try:
        rows = _read(data_dir / _NAME).get(model, {})
        return {pair: Verdict(pair, **row) for pair, row in rows.items()}
    except (TypeError, AttributeError):
        return {}


def keep_verdicts(data_dir: Path, model: str, found: Iterable[Verdict]) -> None:
    """Adds to what is known; a pair measured again replaces what was. Whole or not at all.

    Raises StoreError where the folder cannot be written.
    """
    known = dict(_read(data_dir / _NAME))
    rows = {pair: _row(one) for pair, one in verdicts(data_dir, model).items()}
    known[model] = rows | {one.pair: _row(one) for one in found}
    written = json.dumps({"version": _VERSION, "models": known}, ensure_ascii=False, indent=1)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(data_dir / _NAME, written)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise StoreError("folder_unusable", folder=data_dir, why=why) from None


def _replace(file: Path, written: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=file.name, dir=file.parent)
    new = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(written)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _row(verdict: Verdict) -> dict[str, object]:
    return {name: value for name, value in asdict(verdict).items() if name != "pair"}


def _read(file: Path) -> Mapping[str, Mapping[str, dict[str, Any]]]:
    """Rows by model and pair. A damaged file is as none: it can be measured again."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        models = found["models"] if found["version"] == _VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return models if isinstance(models, dict) else {}
