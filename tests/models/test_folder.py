"""What is wrong with a model's folder is said in a sentence, before anything is loaded."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat import files
from kvchat.errors import ModelError
from kvchat.models.folder import examine
from kvchat.models.offered import check_folder, offered, ways, why_not
from kvchat.models.planned import find
from kvchat.models.verdicts import verdict_key
from kvchat.settings import Settings
from tests.tiny import tiny_folder

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("llama", tmp_path_factory.mktemp("good") / "m")


def copied(good: Path, place: Path) -> Path:
    place.mkdir()
    for file in good.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def without(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def configured(**fields: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def renamed(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new) and None


def written(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text) and None


INDEX = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}})
NOT_CAUSAL = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
OWN_CODE = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without("config.json"), "model_no_config"),
        (written("config.json", "{"), "model_config_unreadable"),
        (written("config.json", "[]"), "model_config_unreadable"),
        (configured(num_attention_heads="many"), "model_config_unreadable"),
        (without("model.safetensors"), "model_no_weights"),
        (renamed("model.safetensors", "pytorch_model.bin"), "model_pickle"),
        (renamed("model.safetensors", "consolidated.00.pth"), "model_pickle"),
        (written("model.safetensors.index.json", INDEX), "model_files_missing"),
        (written("model.safetensors.index.json", "{}"), "model_config_unreadable"),
        (without("tokenizer.json"), "model_no_tokenizer"),
        (configured(**OWN_CODE), "model_own_code"),
        (configured(model_type="own"), "model_unknown_kind"),
        (configured(model_type="t5", architectures=["T5Model"]), "model_not_causal"),
        (configured(**NOT_CAUSAL), "model_not_causal"),
        (configured(quantization_config={"quant_method": "awq"}), "model_quantized"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_defect_has_its_sentence(
    good: Path, tmp_path: Path, change: Change, code: str
) -> None:
    folder = copied(good, tmp_path / "model")
    examine(folder)
    change(folder)
    with pytest.raises(ModelError) as caught:
        examine(folder)
    assert caught.value.code == code
    for lang in ("en", "ko"):
        assert str(tmp_path) in caught.value.message(lang)
        assert len(caught.value.remedy(lang)) > 10


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nowhere", "model_not_found"),
        ("Qwen/Qwen3-4B", "model_not_found"),
        ("model.gguf", "model_is_gguf"),
        ("model.safetensors", "model_not_folder"),
        ("ggufs", "model_is_gguf"),
    ],
)
def test_a_path_that_is_no_folder(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "model-Q4.gguf").touch()
    with pytest.raises(ModelError) as caught:
        examine(tmp_path / name)
    assert caught.value.code == code


def test_code_that_comes_with_a_model_is_not_run(good: Path, tmp_path: Path) -> None:
    """A known kind may carry code of its own, too: the library's is used instead."""
    folder = copied(good, tmp_path / "model")
    configured(auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})(folder)
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\nclass Config: ...\nclass Model: ...\n"
    )
    assert examine(folder).model_class.__name__ == "LlamaForCausalLM"
    assert not ran.exists()


def test_an_index_cannot_name_files_elsewhere(good: Path, tmp_path: Path) -> None:
    folder = copied(good, tmp_path / "model")
    names = {"weight_map": {"a": "../other.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))
    (tmp_path / "other.safetensors").touch()
    assert examine(folder).weight_files == (folder / "model.safetensors",)


@pytest.mark.parametrize("ref", ["a\0b", "\ud800", "x" * 5000, "~no-such-person-here/m"])
def test_what_can_be_no_path_is_not_found_wherever_it_is_named(ref: str, tmp_path: Path) -> None:
    settings = replace(Settings(), model=ref)
    named = ref[:200].encode(errors="replace").decode()
    for look in (
        lambda: check_folder(ref),
        lambda: find(settings, tmp_path),
        lambda: list(ways(ref, Settings(), tmp_path, 2**30, torch.device("cpu"))),
    ):
        with pytest.raises(ModelError) as error:
            look()
        assert error.value.code == "model_not_found"
        assert named in error.value.message("en")
    assert why_not(ref) is not None
    assert len(offered(tmp_path, [ref], ref)) == len(offered(tmp_path, [], ""))
    assert verdict_key(settings) == ref


def test_no_more_of_a_file_is_read_than_a_config_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody names the weights, which are larger than the memory."""
    monkeypatch.setattr(files, "LARGEST_JSON", 1000)
    named = tmp_path / "config.json"
    for content, why in ((b"{" + b" " * 1000, "large"), (b"[" * 999, "deep"), (b"[]", "object")):
        named.write_bytes(content)
        with pytest.raises(ModelError, match=why) as error:
            find(replace(Settings(), model=str(named)), tmp_path)
        assert error.value.code == "config_unreadable"
        with pytest.raises(ModelError, match=why):
            examine(tmp_path)
    with pytest.raises(ModelError, match="no file"):
        find(replace(Settings(), model="/dev/zero"), tmp_path)
