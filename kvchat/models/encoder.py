"""A local model that turns texts into vectors, so that what means the same lies close together.

Read from a folder, as such models are published: a transformer with its config, or the table of a
static model (`static_vectors.py`); safetensors and a tokenizer. Nothing is fetched and no code of
the folder runs. It runs on the CPU: the device is the chat's. Knows no document.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from kvchat.errors import ModelError
from kvchat.models.static_vectors import StaticVectors, static_folder

MOST_TOKENS = 512
_FAILURES = (
    RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, OSError, ImportError,
    SafetensorError,
)  # fmt: skip
Side = Literal["query", "document"]


class Pooled(Protocol):
    """What gives one vector a text."""

    def pooled(self, texts: Sequence[str]) -> Tensor:
        """[texts, dim]"""
        ...


class Encoder:
    """`name` stands for what the vectors depend on. Raises ModelError where the folder has no such
    model.
    """

    def __init__(self, folder: Path) -> None:
        static = static_folder(folder)
        weights = folder if static is None else static
        if static is None and not (folder / "config.json").is_file():
            raise _unusable(folder, "config.json, safetensors")
        if not any(weights.glob("*.safetensors")):
            raise _unusable(folder, "config.json, safetensors")
        try:
            self._model: Pooled = _Transformer(folder) if static is None else StaticVectors(static)
        except _FAILURES as error:
            raise _unusable(folder, " ".join(str(error).split())[:200]) from None
        self._prompts = _read(folder / "config_sentence_transformers.json").get("prompts") or {}
        self.name = _digest(weights)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], side: Side) -> Tensor:
        """[texts, dim], fp32, each of length 1 (of 0 where a text has no known word); a transformer
        reads the first `MOST_TOKENS` of each text.
        """
        prompt = self._prompts.get(side) or ""
        found = self._model.pooled([f"{prompt}{text}" for text in texts])
        return torch.nn.functional.normalize(found.float(), dim=-1)


class _Transformer:
    """The mean over the tokens, or the first one's vector where the folder says so."""

    def __init__(self, folder: Path) -> None:
        about: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self._tokenizer = AutoTokenizer.from_pretrained(folder, **about)
        self._model = AutoModel.from_pretrained(
            folder, use_safetensors=True, dtype=torch.float32, **about
        ).eval()
        self._cls = bool(_read(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))

    def pooled(self, texts: Sequence[str]) -> Tensor:
        inputs = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        hidden: Tensor = self._model(**inputs).last_hidden_state  # [texts, tokens, dim]
        if self._cls:
            return hidden[:, 0]
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return cast(Tensor, mean)


def _unusable(folder: Path, why: str) -> ModelError:
    return ModelError("embedding_model", folder=str(folder), why=why)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(folder: Path) -> str:
    """Of the weights' names, sizes and heads, and the config: quick, and other for other models."""
    config = folder / "config.json"
    found = hashlib.sha256(config.read_bytes() if config.is_file() else b"")
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            found.update(f"{file.name} {file.stat().st_size}".encode() + opened.read(1 << 20))
    return found.hexdigest()[:16]
