"""Vectors from a table: one for each token, averaged over a text.

Such models were distilled from a transformer (model2vec) or trained so (StaticEmbedding of
sentence-transformers): 10 to 100 MB, and a thousand times faster on a CPU.
Folders: `model.safetensors` with the table, `tokenizer.json`. Knows no question and no document.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

_TABLES = ("embeddings", "embedding.weight")
_FILE = "model.safetensors"


def static_folder(folder: Path) -> Path | None:
    """Where the table lies, in that folder or in the part that sentence-transformers makes for it;
    None for any other model.
    """
    for one in (folder, folder / "0_StaticEmbedding"):
        file = one / _FILE
        if (one / "tokenizer.json").is_file() and file.is_file() and _has_table(file):
            return one
    return None


def _has_table(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt") as opened:
            return not set(_TABLES).isdisjoint(opened.keys())
    except (OSError, SafetensorError):
        return False


class StaticVectors:
    """Tokens that the tokenizer does not know count for nothing. `mapping`: a token's row, where
    tokens share rows; `weights`: how much each token counts.
    """

    def __init__(self, folder: Path) -> None:
        tensors = load_file(folder / _FILE)
        self._table = next(tensors[name] for name in _TABLES if name in tensors).float()
        self._mapping, self._weights = tensors.get("mapping"), tensors.get("weights")
        self._tokenizer = _tokenizer(folder / "tokenizer.json")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._unknown = self._tokenizer.token_to_id(unknown) if unknown else None
        if self._table.ndim != 2:
            raise ValueError("the table is not two-dimensional")

    def pooled(self, texts: Sequence[str]) -> Tensor:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return torch.stack([self._mean(one.ids) for one in encoded])

    def _mean(self, token_ids: Sequence[int]) -> Tensor:
        ids = torch.tensor([one for one in token_ids if one != self._unknown], dtype=torch.long)
        if not len(ids):
            return self._table.new_zeros(self._table.shape[1])
        rows = self._table[ids if self._mapping is None else self._mapping[ids].long()]
        if self._weights is not None:
            rows = rows * self._weights[ids].unsqueeze(-1).float()
        return rows.mean(0)


def _tokenizer(file: Path) -> Tokenizer:
    """Raises ValueError."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ValueError(str(error)) from None
