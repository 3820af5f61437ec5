"""Loading as `--model` does it: what comes out, what failing leaves, what unloading gives back."""

import gc
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvchat.attention import hf_seam
from kvchat.errors import ModelError
from kvchat.models.catalog import catalog
from kvchat.models.folder import examine
from kvchat.models.load import PLAIN_TEMPLATE, LoadedModel, chosen_dtype, load_model, unload
from kvchat.models.progress import LoadProgress
from kvchat.wording import say
from tests.tiny import CHAT_TEMPLATE, tiny_folder, tiny_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(params=["llama", "qwen3", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_folder(request.param, tmp_path / request.param, dtype=torch.bfloat16)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_folder("llama", tmp_path / "llama")


def loaded(folder: Path, **asked: Any) -> LoadedModel:
    return load_model(str(folder), data_dir=folder.parent, device=CPU, **asked)


def test_it_is_the_librarys_model_attending_through_our_seam(folder: Path) -> None:
    found = loaded(folder)
    assert found.model.config._attn_implementation == hf_seam.NAME
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(3, 90)[None]
    with torch.no_grad():
        difference = (found.model(ids).logits - expected(ids).logits).abs().max()
    assert difference < 1e-4
    assert not any(one.requires_grad for one in found.model.parameters())
    assert not found.model.training


def test_what_is_told_of_it(folder: Path) -> None:
    found = loaded(folder)
    assert found.name == found.spec.name == folder.name
    assert (found.device, found.dtype) == (CPU, torch.float32)
    assert found.spec.weight_bytes == found.weight_bytes > 0
    assert found.spec.max_positions == 2048
    assert found.chat_template == CHAT_TEMPLATE
    assert (found.notices, found.stop) == ((), ())
    assert found.tokenizer.encode("한글") == tiny_tokenizer().encode("한글")


@pytest.mark.parametrize(("asked", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_dtype_that_was_asked_for(llama: Path, asked: str, dtype: torch.dtype) -> None:
    found = loaded(llama, dtype=asked)
    assert found.dtype == found.model.lm_head.weight.dtype == dtype


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float32), ("cuda:0", torch.bfloat16), ("mps", torch.bfloat16)],
)
def test_auto_is_fp32_on_a_cpu_and_the_models_own_elsewhere(
    folder: Path, device: str, dtype: torch.dtype
) -> None:
    assert chosen_dtype("auto", examine(folder), torch.device(device)) == dtype


def test_int8_weights(folder: Path) -> None:
    whole, small = loaded(folder), loaded(folder, weights="int8")
    assert small.weight_bytes < 0.6 * whole.weight_bytes
    assert small.spec.weight_bytes == small.weight_bytes
    assert small.spec.layers == whole.spec.layers


def edited(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    made = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in (made | fields).items() if v is not None}))


@pytest.mark.parametrize(
    ("listed", "tokenizer_end", "expected"),
    [
        (2, "<|im_end|>", {2}),
        ([0, 2], "<|im_end|>", {0, 2}),
        (0, "<|im_end|>", {0, 2}),  # a wrong generation config: the template's turns end in 2
        (None, "<|endoftext|>", {0, 2}),
    ],
)
def test_all_end_tokens_are_known(
    llama: Path, listed: Any, tokenizer_end: str, expected: set[int]
) -> None:
    edited(llama, "generation_config.json", eos_token_id=listed)
    edited(llama, "config.json", eos_token_id=None)
    edited(llama, "tokenizer_config.json", eos_token=tokenizer_end)
    assert loaded(llama).eos_token_ids == expected


def test_a_turns_end_counts_only_where_the_template_has_it(llama: Path) -> None:
    (llama / "chat_template.jinja").write_text("{{ messages[0].content }}")
    edited(llama, "generation_config.json", eos_token_id=0)
    edited(llama, "tokenizer_config.json", eos_token="<|endoftext|>")
    assert loaded(llama).eos_token_ids == {0}


def test_without_a_generation_config_the_config_tells(llama: Path) -> None:
    (llama / "generation_config.json").unlink()
    assert loaded(llama).eos_token_ids == {2}


def test_without_a_template_a_plain_one_is_used_and_said(llama: Path) -> None:
    (llama / "chat_template.jinja").unlink()
    found = loaded(llama)
    assert found.notices == ("notice.plain_template",)
    assert found.chat_template == PLAIN_TEMPLATE
    assert found.stop == ("\nUser:",)
    for lang in ("en", "ko"):
        assert say("notice.plain_template", lang)
    roles = [("system", "S"), ("user", "Q1"), ("assistant", "A1"), ("user", "Q2")]
    text = found.tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in roles],
        chat_template=PLAIN_TEMPLATE, tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    assert text == "<|endoftext|>S\n\nUser: Q1\nAssistant: A1\nUser: Q2\nAssistant:"


def test_the_default_of_several_templates_is_taken(llama: Path) -> None:
    (llama / "chat_template.jinja").unlink()
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": CHAT_TEMPLATE},
    ]
    edited(llama, "tokenizer_config.json", chat_template=templates)
    found = loaded(llama)
    assert (found.chat_template, found.notices) == (CHAT_TEMPLATE, ())


def test_progress_ends_with_all_weights_and_what_is_left_to_do(llama: Path) -> None:
    told: list[LoadProgress] = []
    loaded(llama, progress=told.append)
    assert [told[0].stage, told[-1].stage] == ["weights", "prepare"]
    assert told[-2].done_bytes == told[-2].total_bytes > 0
    assert (told[-1].done_bytes, told[-1].total_bytes) == (0, 0)


def bytes_alive() -> int:
    """Of all tensors that Python can reach, with or without a name."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return sum(one.nbytes for one in tensors if one.device.type != "meta")


def failing(folder: Path, **asked: Any) -> ModelError:
    """The error, after which no part of a model may be left, even while the error is held."""
    before = bytes_alive()
    with pytest.raises(ModelError) as caught:
        loaded(folder, **asked)
    error = caught.value
    del caught
    assert error.message("ko")
    assert error.remedy("ko")
    assert bytes_alive() == before
    return error


def changed_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | {name.replace("__", "."): t for name, t in changes.items()}
    kept = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, file, metadata={"format": "pt"})


def test_a_file_cut_short(llama: Path) -> None:
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert failing(llama).code == "model_weights_unreadable"


def test_missing_weights_are_named_and_not_made_up(llama: Path) -> None:
    changed_weights(llama, model__layers__2__mlp__up_proj__weight=None)
    error = failing(llama)
    assert error.code == "model_weights_missing"
    assert "model.layers.2.mlp.up_proj.weight" in error.message()


def test_weights_of_another_shape(llama: Path) -> None:
    changed_weights(llama, model__norm__weight=torch.ones(65))
    assert failing(llama).code == "model_cannot_load"


def test_a_tokenizer_that_is_none(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("{}")
    assert failing(llama).code == "model_tokenizer_unreadable"


def test_a_wrong_path() -> None:
    with pytest.raises(ModelError, match="no model folder"):
        loaded(Path("/nowhere/at/all"))


@pytest.mark.parametrize("weights", ["as-is", "int8"])
def test_out_of_memory_is_said_with_the_size(
    llama: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    """torch's own error for a device with no room, at the tenth tensor."""
    from kvchat.models.weights import StoredTensor

    calls = iter(range(10**6))
    read = StoredTensor.__getitem__

    def full(self: StoredTensor, part: Any) -> torch.Tensor:
        if next(calls) == 10:
            torch.empty(2**60, dtype=torch.int8)  # DefaultCPUAllocator: can't allocate memory
        return read(self, part)

    monkeypatch.setattr(StoredTensor, "__getitem__", full)
    error = failing(llama, weights=weights)
    assert error.code == "model_does_not_fit"
    assert "KiB" in error.message()


@pytest.mark.parametrize("weights", ["as-is", "int8"])
def test_called_off_it_stops_and_leaves_nothing(llama: Path, weights: str) -> None:
    cancel = threading.Event()
    told: list[LoadProgress] = []

    def tell(progress: LoadProgress) -> None:
        told.append(progress)
        if progress.done_bytes > progress.total_bytes / 4:
            cancel.set()

    error = failing(llama, weights=weights, progress=tell, cancel=cancel)
    assert error.code == "load_cancelled"
    assert told[-1].done_bytes < told[-1].total_bytes


def test_unloading_frees_the_weights_whoever_holds_the_model(llama: Path) -> None:
    found = loaded(llama)
    kept = found.model
    storage = weakref.ref(next(kept.parameters()))
    unload(found)
    assert storage() is None or storage().device.type == "meta"  # type: ignore[union-attr]
    assert all(one.device.type == "meta" for one in [*kept.parameters(), *kept.buffers()])
    assert found.weight_bytes == 0


@pytest.mark.parametrize("weights", ["as-is", "int8"])
def test_five_cycles_of_loading_end_where_they_began(tmp_path: Path, weights: str) -> None:
    """40 MiB of weights each; what the libraries keep for themselves is there after the first."""
    folder = tiny_folder("llama", tmp_path / "m", hidden_size=384, intermediate_size=2048)
    this = psutil.Process()
    sizes, resident = [], []
    for _ in range(6):
        found = loaded(folder, weights=weights)
        sizes.append(found.weight_bytes)
        unload(found)
        resident.append(this.memory_info().rss)
    assert len(set(sizes)) == 1
    assert resident[-1] - resident[0] < 0.25 * sizes[0]


def test_the_english_model_says_so_and_another_serves_korean() -> None:
    proposals = ("Qwen3-4B-Instruct-2507", "EXAONE-4.0-1.2B")
    assert all(catalog()[name].serves_korean for name in proposals)
    for lang in ("en", "ko"):
        assert all(name in say("notice.english_only", lang) for name in proposals)


def test_a_relative_path_and_a_home_are_understood(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(llama)
    assert load_model(".", data_dir=llama, device=CPU).name == "llama"
    monkeypatch.setenv("HOME", str(llama.parent))
    assert load_model("~/llama", data_dir=llama, device=CPU).name == "llama"


def test_the_tokenizer_is_the_folders(llama: Path) -> None:
    assert loaded(llama).tokenizer.get_vocab() == AutoTokenizer.from_pretrained(llama).get_vocab()
