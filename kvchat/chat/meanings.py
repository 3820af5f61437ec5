"""What passages mean, as vectors of a local model: made in the background, kept on disk, compared
with a question. Without such a model (setting `embedding_model`) nothing is made and nothing found.

The question's words stay the first judge: what BM25 finds is fused with what means the same by
reciprocal ranks (Cormack, Clarke and Buettcher, 2009). Where words find nothing, a passage must be
far more like the question than any is like questions of something else: models differ in what they
call alike, and find every text of a language that they do not know alike.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import Scored
from kvchat.errors import KVChatError
from kvchat.files import replace_file
from kvchat.wording import settings_folder

if TYPE_CHECKING:
    from torch import Tensor

    from kvchat.models.encoder import Encoder

logger = logging.getLogger(__name__)

RANK_CONSTANT = 60
_AT_A_TIME = 16
LEAST_DEVIATIONS, LEAST_DEVIATION = 4.5, 0.01
SUFFIX = ".vectors.safetensors"
_HANGUL = re.compile("[가-힣]")


class Meanings:
    """`model` gives the folder of the moment, empty for none. Calls return at once."""

    def __init__(self, folder: Path, model: Callable[[], str]) -> None:
        self._folder, self._model = folder, model
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None
        self._unrelated: dict[str, Tensor] = {}
        self._opened = ""
        self._kept: dict[str, Tensor] = {}
        self._asked: set[str] = set()
        self._closing = threading.Event()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="kvchat-meanings")

    def close(self) -> None:
        self._closing.set()
        self._maker.shutdown(wait=False, cancel_futures=True)

    def want(self, document: str, passages: Sequence[Passage]) -> None:
        """Makes the vectors of a document's passages in the background, unless they are there."""
        if not self._model() or not passages or self._closing.is_set():
            return
        name = _name(document, passages)
        with self._lock:
            if name in self._kept or name in self._asked:
                return
            self._asked.add(name)
        self._maker.submit(self._made, name, [one.text for one in passages])

    def forget(self, document: str) -> None:
        for file in self._folder.glob(f"{document[:32]}-*{SUFFIX}"):
            file.unlink(missing_ok=True)

    def fused(
        self, scored: Sequence[Scored], question: str, groups: Sequence[Sequence[Passage]], k: int
    ) -> list[Scored]:
        """What words found, and what means the same, best first; as it was where vectors are not
        there yet. `groups`: the passages of each document that is searched.
        """
        likest = self._likest(question, groups, stand_out=not scored, k=k)
        if not likest:
            return list(scored)
        places: dict[Passage, float] = {}
        for ranked in ([one.passage for one in scored], likest):
            for rank, passage in enumerate(ranked, 1):
                places[passage] = places.get(passage, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(places, key=lambda one: -places[one])[:k]
        return [Scored(passage, places[passage]) for passage in best]

    def _likest(
        self, question: str, groups: Sequence[Sequence[Passage]], *, stand_out: bool, k: int
    ) -> list[Passage]:
        there = [(one, self._vectors(one)) for one in groups if one]
        known = [(passages, vectors) for passages, vectors in there if vectors is not None]
        encoder = self._encoder
        if not known or encoder is None:
            return []
        asked = encoder.vectors([question], "query")[0]
        if not asked.any():  # no word of it is known
            return []
        likeness = [
            (float(one), passage)
            for passages, vectors in known
            for one, passage in zip(vectors @ asked, passages, strict=True)
        ]
        likeness.sort(key=lambda one: -one[0])
        if stand_out:
            unrelated = self._unrelated["ko" if _HANGUL.search(question) else "en"]
            usual = [max(float((one @ each).max()) for _, one in known) for each in unrelated]
            if not stands_out(likeness[0][0], usual):
                return []
        return [passage for _, passage in likeness[:k]]

    def _vectors(self, passages: Sequence[Passage]) -> Tensor | None:
        if not self._model():
            return None
        found = self._kept.get(_name(passages[0].document, passages))
        if found is None:
            self.want(passages[0].document, passages)
        return found

    # --- in the background ------------------------------------------------------------------------

    def _made(self, name: str, texts: Sequence[str]) -> None:
        try:
            encoder = self._open()
            if encoder is None:
                return
            file = self._folder / f"{name}.{encoder.name}{SUFFIX}"
            found = _read(file, len(texts))
            if found is None:
                found = self._computed(encoder, texts)
                if found is None:
                    return
                _write(file, found)
            with self._lock:
                self._kept[name] = found
        except KVChatError as error:
            logger.warning("no vectors: %s", error)
        except Exception:
            logger.exception("vectors could not be made")
        finally:
            with self._lock:
                self._asked.discard(name)

    def _open(self) -> Encoder | None:
        """Raises ModelError."""
        from kvchat.models.encoder import Encoder  # torch, which takes seconds

        wanted = self._model()
        if wanted != self._opened:
            self._opened, self._encoder = wanted, None
            with self._lock:
                self._kept.clear()
            encoder = Encoder(Path(wanted).expanduser()) if wanted else None
            if encoder is not None:
                self._unrelated = _unrelated(encoder)
            self._encoder = encoder
        return self._encoder

    def _computed(self, encoder: Encoder, texts: Sequence[str]) -> Tensor | None:
        import torch

        parts = []
        for start in range(0, len(texts), _AT_A_TIME):
            if self._closing.is_set():
                return None
            parts.append(encoder.vectors(texts[start : start + _AT_A_TIME], "document"))
        return torch.cat(parts)


def stands_out(best: float, usual: Sequence[float]) -> bool:
    """Whether the best likeness to a question is far above the best ones to unrelated questions:
    measured in docs/decisions.md.
    """
    return best - mean(usual) >= LEAST_DEVIATIONS * max(stdev(usual), LEAST_DEVIATION)


def _unrelated(encoder: Encoder) -> dict[str, Tensor]:
    """By language."""
    text = (settings_folder() / "unrelated_questions.toml").read_text(encoding="utf-8")
    return {lang: encoder.vectors(those, "query") for lang, those in tomllib.loads(text).items()}


def _name(document: str, passages: Sequence[Passage]) -> str:
    """Of the document and how it was cut."""
    cut = hashlib.sha256("\0".join(one.text for one in passages).encode("utf-8", "replace"))
    return f"{document[:32]}-{cut.hexdigest()[:16]}"


def _read(file: Path, count: int) -> Tensor | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(file).get("vectors")
    except (OSError, SafetensorError, ValueError):
        return None
    return found if found is not None and found.ndim == 2 and len(found) == count else None


def _write(file: Path, vectors: Tensor) -> None:
    from safetensors.torch import save

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(file, save({"vectors": vectors.contiguous()}))
