"""A local model that turns texts into vectors, so that what means the same lies close together.

Read from a folder, as such models are published: config, safetensors, tokenizer. Nothing is
fetched and no code of the folder runs. It runs on the CPU: the device is the chat's. Knows no
document.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from kvchat.errors import ModelError

MOST_TOKENS = 512
_FAILURES = (
    RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, OSError, ImportError,
    SafetensorError,
)  # fmt: skip
Side = Literal["query", "document"]


class Encoder:
    """`name` stands for what the vectors depend on. Raises ModelError where the folder has no such
    model.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise ModelError("embedding_model", folder=str(folder), why="config.json, safetensors")
        try:
            about: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            self._tokenizer = AutoTokenizer.from_pretrained(folder, **about)
            self._model = AutoModel.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, **about
            ).eval()
        except _FAILURES as error:
            why = " ".join(str(error).split())[:200]
            raise ModelError("embedding_model", folder=str(folder), why=why) from None
        self._cls = bool(_read(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
        self._prompts = _read(folder / "config_sentence_transformers.json").get("prompts") or {}
        self.name = _digest(folder)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], side: Side) -> Tensor:
        """[texts, dim], fp32, each of length 1; of the first `MOST_TOKENS` of each text."""
        prompt = self._prompts.get(side) or ""
        told = [f"{prompt}{text}" for text in texts]
        inputs = self._tokenizer(
            told, padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        hidden = self._model(**inputs).last_hidden_state  # [texts, tokens, dim]
        if self._cls:
            pooled = hidden[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(pooled.float(), dim=-1)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(folder: Path) -> str:
    """Of the weights' names, sizes and heads, and the config: quick, and other for other models."""
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            found.update(f"{file.name} {file.stat().st_size}".encode() + opened.read(1 << 20))
    return found.hexdigest()[:16]
