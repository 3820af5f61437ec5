"""A folder's weights onto a device, as they are or in int8; what they take, measured or foretold.

Foretold by the same loading, done on torch's meta device, where tensors have shapes and dtypes but
no bytes: so the figure is exact for every family, quantised and tied weights included. Knows no
tokenizer.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel, QuantoConfig
from transformers.utils import logging

from kvchat.attention import hf_seam
from kvchat.errors import ModelError
from kvchat.models.folder import ModelFolder, examine
from kvchat.models.progress import Report, silent

META = torch.device("meta")
# The library sets torch's default dtype and device while it loads, for all threads: a model that is
# only counted beside one that is loaded would be in the other's.
_ONE_AT_A_TIME = threading.Lock()
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class StoredTensor:
    """One tensor in a file, read when the library asks for it, from several threads."""

    def __init__(self, stored: Any, device: torch.device, report: Report) -> None:
        self._stored = stored
        self._is_meta = device == META
        self._report = report
        self._dtype = _DTYPES[stored.get_dtype()]
        self.shape: list[int] = stored.get_shape()
        self.nbytes = torch.Size(self.shape).numel() * self._dtype.itemsize

    def __getitem__(self, part: Any) -> Tensor:
        self._report.add(self.nbytes)
        if self._is_meta:
            return torch.empty(self.shape, dtype=self._dtype, device=META)[part]
        tensor: Tensor = self._stored[part]
        return tensor


def build(
    folder: ModelFolder, dtype: torch.dtype, weights: str, device: torch.device, report: Report
) -> PreTrainedModel:
    """The model with its weights on the device, attending through our seam.

    Raises what the library raises, and ModelError where files are unreadable or tensors missing.

    Weights are placed by accelerate's device map; for int8, optimum-quanto quantises one matrix at
    a time, so the peak is the int8 model and one matrix. The output layer and the embeddings stay
    as they are.
    """
    hf_seam.register()
    logging.disable_progress_bar()  # `report` tells it
    logging.set_verbosity_error()  # its report of missing weights is said by our error
    stored = _stored_tensors(folder, device, report)
    report.begin("weights", sum(one.nbytes for one in stored.values()))
    with _ONE_AT_A_TIME:
        loaded: Any = folder.model_class.from_pretrained(
            None,
            config=folder.config,
            state_dict=stored,
            dtype=dtype,
            device_map={"": device},
            attn_implementation=hf_seam.NAME,
            quantization_config=QuantoConfig(weights="int8") if weights == "int8" else None,
            output_loading_info=True,
        )
    model: PreTrainedModel = loaded[0]
    names = sorted(loaded[1]["missing_keys"])
    if names:
        raise ModelError(
            "model_weights_missing", path=folder.path, num=len(names), first=", ".join(names[:3])
        )
    model.requires_grad_(False)
    return model


def _stored_tensors(
    folder: ModelFolder, device: torch.device, report: Report
) -> dict[str, StoredTensor]:
    # As the library reads them: a memory map reserves the whole file's size on Windows.
    backend = "pread" if sys.platform == "win32" else "mmap"
    stored = {}
    for path in folder.weight_files:
        try:
            file: Any = safe_open(path, framework="pt", backend=backend)
        except (SafetensorError, OSError) as error:
            raise ModelError("model_weights_unreadable", path=path, why=str(error)) from None
        for name in list(file.keys()):
            stored[name] = StoredTensor(file.get_slice(name), device, report)
    return stored


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all distinct storages of parameters and buffers, inside quantised tensors too."""
    sizes = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        for plain in _plain(tensor):
            storage = plain.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()  # its identity, on the meta device too
    return sum(sizes.values())


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold a quantised one's bytes; an ordinary one itself."""
    if type(tensor) in (Tensor, nn.Parameter):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        yield from _plain(getattr(tensor, name))


def predicted_weight_bytes(folder: Path, dtype: torch.dtype, weights: str = "as-is") -> int:
    """What `weight_bytes` will be once loaded, from headers and config alone. Raises ModelError."""
    report = Report(silent)
    return weight_bytes(build(examine(folder), dtype, weights, META, report))
