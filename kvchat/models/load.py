"""From a name or a folder to a model that can run: weights, tokenizer, template, ends, spec.

A loading that fails or is called off leaves nothing on the device. Knows no cache and no engine.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.device.memory import pick_device
from kvchat.device.oom import is_out_of_memory, release
from kvchat.errors import ModelError
from kvchat.models.builtin import builtin_folder
from kvchat.models.catalog import builtin, catalog
from kvchat.models.folder import ModelFolder, examine, one_line, path_of
from kvchat.models.progress import Cancelled, LoadProgress, Report, silent
from kvchat.models.weights import META, build, predicted_weight_bytes, weight_bytes
from kvchat.units import format_size

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# For models without a template of their own: base models, mostly.
PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% else %}Assistant: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
PLAIN_STOP = ("\nUser:",)

# Tokens that end a turn in the chat templates of known families; an end wherever the template has
# them.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>")

# What the library raises for files that do not fit together.
_FAILURES = (
    RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, OSError, ImportError,
    MemoryError, NotImplementedError, SafetensorError,
)  # fmt: skip


@dataclass(slots=True)
class LoadedModel:
    """A model ready to run. `weight_bytes` is measured on its tensors; `notices` are wording codes.

    `stop` are the stop strings that the plain template needs, else empty.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    weight_bytes: int
    eos_token_ids: frozenset[int]
    notices: tuple[str, ...]
    chat_template: str
    stop: tuple[str, ...] = ()


def load_model(
    ref: str,
    *,
    data_dir: Path,
    dtype: str = "auto",
    weights: str = "as-is",
    device: torch.device | None = None,
    progress: Callable[[LoadProgress], None] = silent,
    cancel: threading.Event | None = None,
    check: Callable[[Path, torch.dtype], None] | None = None,
) -> LoadedModel:
    """The built-in model by its name, or the one in a folder. Blocks. Raises ModelError.

    `progress` is called from here and from loading threads, one at a time. `check` sees the folder
    and the dtype before any weight is read, and may refuse by raising.
    """
    report = Report(progress, cancel)
    device = device or pick_device()
    try:
        folder = _folder(ref, data_dir, report)
        if check is not None:
            check(folder.path, chosen_dtype(dtype, folder, device))
        loaded: LoadedModel | ModelError = _load(ref, folder, dtype, weights, device, report)
    except Cancelled:
        loaded = ModelError("load_cancelled")
    if isinstance(loaded, ModelError):
        release(device)
        raise loaded
    return loaded


def unload(loaded: LoadedModel) -> None:
    """Gives the weights' memory back now, whoever still holds the model. It cannot run any more."""
    nn.Module.to(loaded.model, META)
    loaded.weight_bytes = 0
    release(loaded.device)


def chosen_dtype(name: str, folder: ModelFolder, device: torch.device) -> torch.dtype:
    """A dtype by its name; `auto` is fp32 on a CPU, elsewhere the model's own or fp16."""
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    own = folder.config.dtype or folder.config.get_text_config().dtype
    return own if isinstance(own, torch.dtype) else torch.float16


def _folder(ref: str, data_dir: Path, report: Report) -> ModelFolder:
    path = builtin_folder(data_dir, report) if ref == builtin().name else path_of(ref)
    return examine(path)


def _load(
    ref: str,
    folder: ModelFolder,
    dtype_name: str,
    weights: str,
    device: torch.device,
    report: Report,
) -> LoadedModel | ModelError:
    """What fails is returned, not raised: an error keeps the frames that hold half a model."""
    dtype = chosen_dtype(dtype_name, folder, device)
    try:
        tokenizer = _tokenizer(folder)
        model = build(folder, dtype, weights, device, report)
        model.generation_config = _generation_config(folder)
        name = ref if ref == builtin().name else folder.path.resolve().name
        return _described(name, folder, model, tokenizer, report)
    except ModelError as error:
        return error.with_traceback(None)
    except _FAILURES as error:
        no_room, why = is_out_of_memory(error), one_line(error)
    if no_room:
        release(device)
        needed = format_size(predicted_weight_bytes(folder.path, dtype, weights))
        return ModelError("model_does_not_fit", path=folder.path, device=device, needed=needed)
    return ModelError("model_cannot_load", path=folder.path, why=why)


def _described(
    name: str,
    folder: ModelFolder,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
) -> LoadedModel:
    measured = weight_bytes(model)
    template = _own_template(tokenizer)
    notices = () if template else ("notice.plain_template",)
    if name == builtin().name and not catalog()[name].serves_korean:
        notices = ("notice.english_only", *notices)
    report.begin("prepare", 0)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        spec=spec_from_config(
            folder.raw,
            name=name,
            weight_bytes=measured,
            dtype_bytes=model.dtype.itemsize,
            tokenizer_limit=tokenizer.model_max_length,
        ),
        device=model.device,
        dtype=model.dtype,
        weight_bytes=measured,
        eos_token_ids=_end_ids(model, tokenizer, template or ""),
        notices=notices,
        chat_template=template or PLAIN_TEMPLATE,
        stop=() if template else PLAIN_STOP,
    )


def _tokenizer(folder: ModelFolder) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain ones
        problem = ModelError("model_tokenizer_unreadable", path=folder.path, why=one_line(error))
    raise problem


def _generation_config(folder: ModelFolder) -> GenerationConfig:
    if (folder.path / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder.path, local_files_only=True)
    return GenerationConfig.from_model_config(folder.config)


def _own_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The default one where there are several (one for tools, say); None where there is none."""
    if not tokenizer.chat_template:
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        return None


def _end_ids(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str
) -> frozenset[int]:
    """End tokens of the generation config (one or more), the tokenizer, the template's turns."""
    listed = model.generation_config.eos_token_id
    found = set(listed if isinstance(listed, list) else [listed])
    found.add(tokenizer.eos_token_id)
    vocabulary = tokenizer.get_added_vocab()
    found.update(vocabulary.get(end) for end in _TURN_ENDS if end in template)
    return frozenset(int(one) for one in found if one is not None)
