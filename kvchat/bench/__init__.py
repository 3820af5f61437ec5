"""`python app.py bench NAME…`: measures this machine and this model; nothing is asserted.

    prefill, decode   speed beside the library's own loop and cache, in the formats that are set
    quantized         decode beside the library's own quantized cache
    attention         attention alone beside the library's, and the bytes it reads in a second
    cache             tokens in a GiB of KV, and what of the pool stands free
    requantize        storing a text in lower formats, beside decode steps
    resume            a text from disk after a restart, beside reading it again
    planning          what deciding takes beside a decode step
    fidelity          what each pair of formats costs this model; the verdict is kept
    documents         what reading files takes, and whether the page that answers is found
                      (--documents: a folder of files, with QA.tsv)
    ui                what showing memory live costs the server while an answer is written

A row a measurement: a line to read, or with `--json` an object. What is measured, and about how
long that takes, is said on stderr as it begins.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvchat.bench import (
    attention,
    fidelity,
    finding,
    planning,
    reading,
    requantize,
    resume,
    speed,
    ui,
)
from kvchat.bench import cache as cache_bench
from kvchat.bench.readers import PEERS
from kvchat.bench.telling import told, told_at_once
from kvchat.bench.text import sample
from kvchat.engine.engine import Engine
from kvchat.engine.open import open_engine
from kvchat.errors import SettingsError
from kvchat.models.progress import silent
from kvchat.models.verdicts import keep_verdicts, verdict_key
from kvchat.settings import Settings, changed
from kvchat.wording import Language, say

NAMES = (
    "prefill",
    "decode",
    "quantized",
    "attention",
    "cache",
    "requantize",
    "resume",
    "planning",
    "fidelity",
    "documents",
    "ui",
)
DEFAULT = ("prefill", "decode")


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Prints each row once it is measured. Raises KVChatError."""
    names = tuple(args.name) or DEFAULT
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SettingsError("bench_unknown", name=unknown[0], known=", ".join(NAMES))
    own = {"memory_budget": None, "disk_quota": 0, "allow_unproven": True}
    settings = changed(settings, own)
    benches = _Benches(args, settings, data_dir, lang)
    others = () if args.name else tuple(name for name in NAMES if name not in names)
    _tell(told_at_once(names, others, Path(settings.model).name, lang))
    for row in benches.rows(names):
        print(json.dumps(row, ensure_ascii=False) if args.json else told(row, lang), flush=True)
    return 0


def _tell(line: str) -> None:
    """Beside the rows, which a script reads."""
    print(line, file=sys.stderr, flush=True)


class _Benches:
    """What was asked for, over one engine that is opened when the first of them wants it."""

    def __init__(
        self, args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language
    ) -> None:
        self.pairs = fidelity.chosen_pairs(args.pairs) if args.pairs else None
        self.text_file: Path | None = args.text
        self.context: int | None = args.context
        self.folder: Path | None = args.documents
        self.settings, self.data_dir, self.lang = settings, data_dir, lang
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            _tell(say("bench.loads", self.lang, model=Path(self.settings.model).name))
            self._engine = open_engine(self.settings, self.data_dir, silent, None)
        return self._engine

    def rows(self, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        wanted = [name for name in ("prefill", "decode") if name in names]
        if wanted:
            self._begin(*wanted)
            rows = speed.measured(self.engine, self._contexts(speed.CONTEXTS))
            yield from (row for row in rows if row["name"] in wanted)
        if "quantized" in names:
            self._begin("quantized")
            contexts = self._contexts(speed.CONTEXTS)
            yield from speed.measured(self.engine, contexts, quantized=True)
        if "attention" in names:
            self._begin("attention")
            pairs = self._own(attention.DEFAULT_PAIRS)
            yield from attention.measured(self.engine, pairs, self._contexts(attention.CONTEXTS))
        if "cache" in names:
            self._begin("cache")
            pairs = self._own(cache_bench.DEFAULT_PAIRS)
            yield from cache_bench.measured(pairs, layer_formats=self.settings.layer_formats)
        if "requantize" in names:
            self._begin("requantize")
            yield from requantize.measured(self.engine, self._own(requantize.DEFAULT_PAIRS))
        if "resume" in names:
            self._begin("resume")
            yield from resume.measured(self.engine, self._contexts(resume.CONTEXTS))
        if "planning" in names:
            self._begin("planning")
            yield from planning.measured(self.engine, self._contexts(planning.CONTEXTS))
        if "fidelity" in names:
            self._begin("fidelity")
            yield from self._fidelity()
        if "documents" in names:
            self._begin("documents")
            if self.folder is not None and self.folder.is_dir():
                yield from reading.of_files(self.folder)
            yield from self._documents()
        if "ui" in names:
            self._begin("ui")
            yield from ui.measured(self.engine)

    def _begin(self, *names: str) -> None:
        _tell(say("bench.begins", self.lang, names=", ".join(names)))

    def _documents(self) -> Iterator[dict[str, Any]]:
        tokenizer = self.engine.loaded.tokenizer

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        yield from finding.of_folder(self.folder, count)

    def _contexts(self, usual: tuple[int, ...]) -> tuple[int, ...]:
        return usual if self.context is None else (self.context,)

    def _own(self, usual: tuple[str, ...]) -> tuple[str, ...]:
        """The pairs asked for, without what other programs do."""
        asked = usual if self.pairs is None else self.pairs
        return tuple(name for name in asked if name not in PEERS)

    def _fidelity(self) -> Iterator[dict[str, Any]]:
        loaded = self.engine.loaded
        text = sample(self.text_file, loaded.name, self.lang)
        rows = list(fidelity.measured(self.engine, text, self.pairs or fidelity.DEFAULT_PAIRS))
        found = [fidelity.verdict_of(row) for row in rows]
        kept = [one for one in found if one is not None]
        key = verdict_key(self.settings)
        keep_verdicts(self.data_dir, key, kept, self.settings.layer_formats)
        for row, verdict in zip(rows, found, strict=True):
            yield row | {"passed": None if verdict is None else verdict.passed}
