"""The weights of a folder are counted from the headers of its files, to the byte."""

import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kvchat.arch.weights import folder_weight_bytes
from kvchat.errors import ModelError
from tests.tiny import tiny_folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_headers_say_what_the_tensors_take(tmp_path: Path, dtype: torch.dtype):
    folder = tiny_folder("qwen3", tmp_path, dtype=dtype)
    tensors = load_file(folder / "model.safetensors").values()
    assert folder_weight_bytes(folder) == sum(t.numel() * t.element_size() for t in tensors)
    num_values = sum(t.numel() for t in tensors)
    assert folder_weight_bytes(folder, dtype_bytes=2) == num_values * 2
    assert folder_weight_bytes(folder, dtype_bytes=4) == num_values * 4


def test_all_files_of_a_split_model_count(tmp_path: Path):
    model_file = tiny_folder("llama", tmp_path / "whole") / "model.safetensors"
    (tmp_path / "split").mkdir()
    for i in (1, 2):
        (tmp_path / "split" / f"model-{i}-of-2.safetensors").write_bytes(model_file.read_bytes())
    whole = folder_weight_bytes(model_file.parent)
    assert whole is not None
    assert folder_weight_bytes(tmp_path / "split") == 2 * whole


def test_a_folder_without_weights_has_none(tmp_path: Path):
    assert folder_weight_bytes(tmp_path) is None


@pytest.mark.parametrize("keep", [-1, -100, 20, 4, 0])
def test_a_download_that_broke_off_is_told(tmp_path: Path, keep: int):
    file = tiny_folder("llama", tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError) as caught:
        folder_weight_bytes(tmp_path)
    assert caught.value.code in ("weights_cut_short", "weights_unreadable")
    assert "model.safetensors" in caught.value.line("ko")


def test_a_header_that_lies_about_its_length_is_not_read(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ModelError, match="not a readable safetensors"):
        folder_weight_bytes(tmp_path)
