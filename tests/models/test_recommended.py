"""What a model's makers recommend holds below what a person chose, and ends no start."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.models.recommended import recommended
from kvchat.settings import SCHEMA, Settings
from kvchat.settings_sources import Sources

QWEN = {
    "do_sample": True, "temperature": 0.6, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05,
    "eos_token_id": [151645, 151643], "transformers_version": "4.51.0",
}  # fmt: skip


def folder(path: Path, content: Any) -> str:
    path.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (path / "generation_config.json").write_text(text, encoding="utf-8")
    return str(path)


def test_a_folder_says_it_in_the_librarys_file(tmp_path: Path) -> None:
    found = recommended(folder(tmp_path / "a", QWEN))
    assert found == {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    gemma = folder(tmp_path / "b", {"do_sample": True, "top_k": 64, "top_p": 0.95})
    assert recommended(gemma) == {"temperature": 1.0, "top_k": 64, "top_p": 0.95}


def test_the_catalog_says_it_of_the_built_in_model() -> None:
    found = recommended("smollm2")
    assert found
    assert set(found) <= set(SCHEMA)
    assert recommended("no such model") == {}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "null", '{"do_sample": true' + "[" * 9000,
        {"temperature": 0.1},  # without do_sample the library takes the likeliest token
        {"do_sample": False, "temperature": 0.1},
        {"do_sample": "yes", "temperature": 0.1},
    ],
)  # fmt: skip
def test_other_files_say_nothing(tmp_path: Path, content: Any) -> None:
    assert recommended(folder(tmp_path / "a", content)) == {}
    assert recommended(str(tmp_path / "a" / "generation_config.json")) == {}


def test_what_is_out_of_range_is_left_out(tmp_path: Path) -> None:
    wild = {"do_sample": True, "temperature": -3, "top_p": "x", "top_k": 5, "min_p": 1e9}
    assert recommended(folder(tmp_path / "a", wild)) == {"top_k": 5}


def test_it_holds_above_the_schema_and_below_all_else(tmp_path: Path) -> None:
    model = folder(tmp_path / "a", QWEN)
    file = tmp_path / "settings.toml"
    file.write_text(f"top_k = 3\n[models.{json.dumps(model)}]\ntop_p = 0.5\n", encoding="utf-8")
    flags = {"model": model, "repetition_penalty": 1.2}
    found = Sources.of_start("low_vram", file, flags, recommended)
    settings = found.settings()
    named = (settings.temperature, settings.top_k, settings.top_p, settings.repetition_penalty)
    assert named == (0.6, 3, 0.5, 1.2)
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "min_p", "max_new_tokens")
    assert [found.source(name, model) for name in names] == [
        "maker", "file", "model", "flag", "schema", "preset",
    ]  # fmt: skip
    below = found.below(model)
    assert (below.temperature, below.top_k, below.max_new_tokens) == (0.6, 20, 512)
    other = found.changed({"model": folder(tmp_path / "b", {})}).settings()
    assert other.temperature == Settings().temperature
