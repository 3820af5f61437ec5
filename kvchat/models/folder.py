"""What a model's folder must hold before anything is loaded: config.json, safetensors, a tokenizer.

Each thing that is missing or refused has its own sentence. Nothing in a folder is executed: no
pickle, no code that comes with a model. Reads config files and names; knows no device and loads no
weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvchat.errors import ModelError
from kvchat.files import read_json

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
_CONFIG_ERRORS = (
    OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError,
)  # fmt: skip
_MOST_SHOWN = 200
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`raw` is config.json as it stands; `config` what the library makes of it."""

    path: Path
    raw: Mapping[str, Any]
    config: PreTrainedConfig
    model_class: type[PreTrainedModel]
    weight_files: tuple[Path, ...]


def path_of(ref: str) -> Path:
    """Where a model is said to be. Raises ModelError for what cannot be a path: no character of it
    may be half of one or zero, a part too long, a home nobody's.
    """
    try:
        path = Path(ref).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # where it is looked into, that has sentences of its own
    except (OSError, RuntimeError, ValueError):
        shown = ref[:_MOST_SHOWN].encode(errors="replace").decode()
        raise ModelError("model_not_found", path=shown) from None
    return path


def examine(path: Path) -> ModelFolder:
    """The folder, fit to be loaded as far as its names and config tell. Raises ModelError."""
    _must_be_folder(path)
    raw = _config_json(path)
    files = _weight_files(path)
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise ModelError("model_no_tokenizer", path=path, names=", ".join(_TOKENIZERS))
    kind = str(raw.get("model_type", ""))
    if kind not in CONFIG_MAPPING:
        code = "model_own_code" if "auto_map" in raw else "model_unknown_kind"
        raise ModelError(code, path=path, kind=kind)
    if "quantization_config" in raw:
        how = raw["quantization_config"]
        method = how.get("quant_method", "?") if isinstance(how, dict) else "?"
        raise ModelError("model_quantized", path=path, method=method)
    config = _config(path)
    return ModelFolder(path, raw, config, _causal_class(path, config, raw), files)


def _must_be_folder(path: Path) -> None:
    if path.is_dir():
        return
    if not path.exists():
        raise ModelError("model_not_found", path=path)
    code = "model_is_gguf" if path.suffix.lower() == ".gguf" else "model_not_folder"
    raise ModelError(code, path=path)


def _config_json(path: Path) -> Mapping[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        if any(path.glob("*.gguf")):
            raise ModelError("model_is_gguf", path=path)
        raise ModelError("model_no_config", path=path)
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise ModelError("model_config_unreadable", path=file, why=one_line(error)) from None


def _config(path: Path) -> PreTrainedConfig:
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except _CONFIG_ERRORS as error:
        file = path / "config.json"
        raise ModelError("model_config_unreadable", path=file, why=one_line(error)) from None
    return found


def _weight_files(path: Path) -> tuple[Path, ...]:
    """One file, or those that the index names, all of them there."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(read_json(index)["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError("model_config_unreadable", path=index, why=one_line(error)) from None
        files = tuple(path / str(name) for name in sorted(names) if Path(name).name == name)
    else:
        files = tuple(sorted(path.glob("*.safetensors")))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError("model_files_missing", path=path, names=", ".join(missing))
    if not files:
        pickled = any(True for pattern in _PICKLES for _ in path.glob(pattern))
        raise ModelError("model_pickle" if pickled else "model_no_weights", path=path)
    return files


def _causal_class(
    path: Path, config: PreTrainedConfig, raw: Mapping[str, Any]
) -> type[PreTrainedModel]:
    """The library's class that predicts the next token; other trainings have none."""
    listed = raw.get("architectures") or []
    try:
        found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise ModelError("model_not_causal", path=path, kind=_kind(config, listed)) from None
    classes: Any = found if isinstance(found, (list, tuple)) else (found,)
    by_name: dict[str, type[PreTrainedModel]] = {one.__name__: one for one in classes}
    for name in listed:
        if name in by_name:
            return by_name[name]
    if listed or config.is_encoder_decoder:
        raise ModelError("model_not_causal", path=path, kind=_kind(config, listed))
    return next(iter(by_name.values()))


def _kind(config: PreTrainedConfig, listed: list[str]) -> str:
    return listed[0] if listed else str(config.model_type)


def one_line(error: BaseException) -> str:
    """What an error of a library says, short enough for a sentence."""
    text = " ".join(str(error).split()).rstrip(".:")
    return (text or type(error).__name__)[:200]
