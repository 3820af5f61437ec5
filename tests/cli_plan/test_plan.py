"""`plan` from the command line: what it prints, from which model, and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.cli import main
from kvchat.device.memory import pick_device
from kvchat.memory.formats import FORMATS
from kvchat.models.catalog import catalog
from kvchat.models.weights import weight_bytes
from kvchat.units import GIB, MIB
from kvchat.wording import table
from tests.tiny import tiny_folder, tiny_model

LLAMA_3_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "float16",
}


# Bytes of a value as it is computed on this machine.
WIDE = 4 if pick_device().type == "cpu" else 2


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "Llama-3-70B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_70B))
    return folder


def plan(capsys: pytest.CaptureFixture[str], data_dir: Path, *flags: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["plan", *flags, "--data-dir", str(data_dir), "--lang", "en"])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def planned(capsys: pytest.CaptureFixture[str], data_dir: Path, *flags: str) -> dict[str, Any]:
    code, out = plan(capsys, data_dir, *flags, "--json")
    assert code == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("context", "in_fp", "fp", "int8"),
    [
        (4_096, "1.25 GiB", 1.25, 0.6345),
        (32_000, "9.77 GiB", 9.7656, 4.9588),
        (131_072, "40.00 GiB", 40, 20.3122),
    ],
)
def test_the_published_row(
    capsys: pytest.CaptureFixture[str],
    data_dir: Path,
    llama: Path,
    context: int,
    in_fp: str,
    fp: float,
    int8: float,
):
    flags = ["--model", str(llama / "config.json"), "--context", str(context), "--dtype", "fp16"]
    found = planned(capsys, data_dir, *flags)
    rows = {(row["key_format"], row["value_format"]): row for row in found["pairs"]}
    assert rows["fp", "fp"]["token_bytes"] == 327_680
    assert round(rows["fp", "fp"]["kv_bytes"] / GIB, 4) == fp
    # With a scale of two bytes for each token and head: 8.125 bits a value at head size 128. The
    # first and the newest 64 tokens stay as computed, these in the hot window.
    assert round(rows["int8", "int8"]["kv_bytes"] / GIB, 4) == int8
    code, out = plan(capsys, data_dir, *flags)
    assert code == 0
    assert in_fp in out
    assert "327,680" in out


def test_every_pair_of_formats_is_there(
    capsys: pytest.CaptureFixture[str], data_dir: Path, llama: Path
):
    flags = ["--model", str(llama), "--context", "1000", "--memory-budget", "155GiB"]
    found = planned(capsys, data_dir, *flags, "--dtype", "fp16")
    assert len(found["pairs"]) == len(FORMATS) ** 2
    most = {(r["key_format"], r["value_format"]): r["largest_context"] for r in found["pairs"]}
    assert 70_000 < most["fp", "fp"] < 80_000 < most["int8", "int8"] <= 131_072
    assert most["int4", "int4"] == 131_072
    assert found["estimated"] == ["weights", "activations"]
    assert found["fits"]


def test_formats_asked_for_are_the_only_ones_and_itemised(
    capsys: pytest.CaptureFixture[str], data_dir: Path, llama: Path
):
    flags = ["--model", str(llama), "--context", "6400"]
    found = planned(capsys, data_dir, *flags, "--key-format", "int8", "--value-format", "int4")
    assert len(found["pairs"]) == 1
    assert found["formats"] == ["int8", "int4"]
    stored = (6400 - 256 - 64) * 80 * 8 * (128 + 2 + 64 + 2)
    assert found["footprint"]["kv_device"] == stored + 64 * 80 * 8 * 2 * 128 * WIDE
    assert found["footprint"]["kv_device"] == found["pairs"][0]["kv_bytes"]


def test_layers_that_are_never_stored_in_less_are_counted(
    capsys: pytest.CaptureFixture[str], data_dir: Path, llama: Path
):
    """Two layers of 80 in int8, the last one's keys as computed; the first 64 tokens everywhere."""
    flags = ["--model", str(llama), "--context", "6400", "--dtype", "fp16"]
    formats = ["--key-format", "int4", "--value-format", "int4"]
    layers = ["--set", "layer_formats=0-1=int8, -1=fp/int4"]
    found = planned(capsys, data_dir, *flags, *formats, *layers)
    token = 8 * (77 * 2 * 66 + 2 * 2 * 130 + 256 + 66)
    assert found["footprint"]["kv_device"] == (6400 - 256 - 64) * token + 64 * 327_680
    assert found["pairs"][0]["token_bytes"] == token
    assert found["layer_formats"] == "0-1=int8/int8, -1=fp/int4"
    _, out = plan(capsys, data_dir, *flags, *layers)
    assert "0-1=int8/int8, -1=fp/int4" in out
    code, out = plan(capsys, data_dir, *flags, "--set", "layer_formats=80=int8")
    assert code == 1
    assert "80" in out
    assert out.count("\n") == 1


def test_a_format_for_comparison_can_be_planned_when_it_is_named(
    capsys: pytest.CaptureFixture[str], data_dir: Path
):
    flags = ["--model", "llama-3-70b", "--context", "32000", "--dtype", "fp16"]
    found = planned(capsys, data_dir, *flags, "--key-format", "quanto4", "--value-format", "int4")
    assert [row["token_bytes"] for row in found["pairs"]] == [80 * 8 * (64 + 8 + 64 + 2)]
    code, out = plan(capsys, data_dir, *flags)
    assert code == 0
    assert "9.77 GiB" in out
    assert "quanto" not in out


def test_the_items_sum_to_the_total_and_to_what_is_short(
    capsys: pytest.CaptureFixture[str], data_dir: Path, llama: Path
):
    found = planned(
        capsys, data_dir, "--model", str(llama), "--context", "1000", "--memory-budget", "8GiB"
    )
    items = found["footprint"]
    on_device = ("weights", "kv_device", "activations", "workspace", "headroom")
    assert sum(items[name] for name in on_device) == items["total"]
    assert found["short_by_bytes"] == items["total"] - 8 * GIB
    assert not found["fits"]
    code, out = plan(
        capsys, data_dir, "--model", str(llama), "--context", "1000", "--memory-budget", "8GiB"
    )
    assert code == 0
    assert "Does not fit" in out


def test_the_largest_context_fits_and_one_more_does_not(
    capsys: pytest.CaptureFixture[str], data_dir: Path
):
    flags = ["--model", "Qwen3-8B", "--memory-budget", "18GiB", "--dtype", "bf16"]
    most = planned(capsys, data_dir, *flags, "--context", "1")["pairs"][0]["largest_context"]
    assert 1000 < most < 40960
    assert planned(capsys, data_dir, *flags, "--context", str(most))["fits"]
    assert not planned(capsys, data_dir, *flags, "--context", str(most + 1))["fits"]


@pytest.mark.parametrize("weights", ["as-is", "int8"])
def test_weights_of_a_folder_are_what_they_will_be(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path, weights: str
):
    folder = tiny_folder("qwen3", tmp_path / "tiny", dtype=torch.float16)
    flags = ["--model", str(folder), "--context", "100", "--dtype", "fp32", "--weights", weights]
    found = planned(capsys, data_dir, *flags)
    measured = weight_bytes(tiny_model("qwen3")[1])
    assert found["weights_from"] == "files"
    assert "weights" not in found["estimated"]
    if weights == "as-is":
        assert found["footprint"]["weights"] == measured
    else:
        assert found["footprint"]["weights"] < 0.7 * measured


def test_a_folder_that_cannot_be_loaded_is_still_weighed(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path
):
    folder = tiny_folder("llama", tmp_path / "tiny")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    found = planned(capsys, data_dir, "--model", str(folder), "--context", "100", "--dtype", "fp32")
    assert found["weights_from"] == "files"


def test_the_built_in_model_needs_nothing_on_disk(
    capsys: pytest.CaptureFixture[str], data_dir: Path
):
    found = planned(capsys, data_dir, "--context", "4096", "--dtype", "fp32")
    assert found["model"] == "smollm2"
    assert round(found["footprint"]["weights"] / MIB) == 513
    assert found["pairs"][0]["token_bytes"] == 30 * 3 * 128 * 4
    assert "int2/int2" in found["failed"]
    _, out = plan(capsys, data_dir, "--context", "4096", "--memory-budget", "300MiB")
    assert re.search("failed them when it was measured: .*int2/int2", out)
    assert "fits 0" not in out, "nothing is the longest where nothing fits"


@pytest.mark.parametrize(("device", "dtype", "token"), [("cpu", "fp32", 4), ("cuda", "bf16", 2)])
def test_the_dtype_is_that_of_the_machine_and_the_context_the_models_own(
    capsys: pytest.CaptureFixture[str],
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: str,
    token: int,
):
    monkeypatch.setattr("kvchat.models.planned.pick_device", lambda: torch.device(device))
    found = planned(capsys, data_dir, "--model", "Qwen3-8B")
    assert found["dtype"] == dtype
    assert found["pairs"][0]["token_bytes"] == 36 * 2 * 8 * 128 * token
    assert found["context"] == found["max_positions"] == 40_960
    _, out = plan(capsys, data_dir, "--model", "Qwen3-8B")
    assert f"Qwen3-8B in {dtype} on {found['room']['device']}" in out


@pytest.mark.parametrize("name", [name for name in catalog() if name != "smollm2"])
def test_every_model_of_the_catalog_can_be_planned_by_any_of_its_names(
    capsys: pytest.CaptureFixture[str], data_dir: Path, name: str
):
    entry = catalog()[name]
    flags = ["--context", "4096", "--memory-budget", "24GiB", "--dtype", "bf16"]
    found = [
        planned(capsys, data_dir, "--model", one, *flags)
        for one in (name, name.lower(), entry.repository)
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["footprint"]["weights"] == entry.parameters * 2
    assert found[0]["weights_from"] == "catalog"
    assert 0 < found[0]["max_positions"] <= 262_144


def test_beyond_the_model_is_said_and_never_fits_as_the_most(
    capsys: pytest.CaptureFixture[str], data_dir: Path
):
    flags = ["--model", "Qwen3-0.6B", "--context", "100000", "--memory-budget", "64GiB"]
    found = planned(capsys, data_dir, *flags)
    assert found["beyond_model"]
    assert {row["largest_context"] for row in found["pairs"]} == {40_960}
    _, out = plan(capsys, data_dir, *flags)
    assert "more than this model can read" in out


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_text_is_in_one_language_and_lines_up(
    capsys: pytest.CaptureFixture[str], data_dir: Path, lang: str
):
    flags = ["plan", "--model", "gemma-3-4b-it", "--context", "5000", "--data-dir", str(data_dir)]
    assert main([*flags, "--lang", lang]) == 0
    out = capsys.readouterr().out
    korean = any("가" <= letter <= "힣" for letter in out)
    assert korean == (lang == "ko")
    assert ("슬라이딩" if lang == "ko" else "sliding layers") in out
    rows = [line for line in out.splitlines() if re.match(r" *\w+/\w+ +[\d,]+ ", line)]
    assert len(rows) == len(FORMATS) ** 2
    assert len({len(row) for row in rows}) == 1


def test_every_kind_of_layer_has_a_line_in_both_languages():
    for kind in ("full", "sliding", "latent", "recurrent", "none", "shared"):
        assert set(table()[f"plan.layer.{kind}"]) == {"en", "ko"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--context", "0"], "makes no sense"),
        (["--context", "-5"], "makes no sense"),
        (["--context", "99999999999999"], "makes no sense"),
        (["--context", "x"], "context"),
        (["--context", "10", "--key-format", "int3"], "no KV format named 'int3'"),
        (["--context", "10", "--value-format", ""], "no KV format named ''"),
        (["--context", "10", "--model", "/nowhere/at/all"], "no config.json"),
        (["--context", "10", "--model", "no-such-model"], "no config.json"),
        (["--context", "10", "--memory-budget", "6GB"], "not a memory size"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_one_sentence_with_a_remedy(
    capsys: pytest.CaptureFixture[str],
    data_dir: Path,
    flags: list[str],
    says: str,
    as_json: bool,
):
    code, out = plan(capsys, data_dir, *flags, *(["--json"] if as_json else []))
    assert code == 1
    assert len(out.splitlines()) == 1
    if as_json:
        failed = json.loads(out)
        assert failed["type"] == "failed"
        assert failed["remedy"]
        out = failed["message"] + failed["remedy"]
    assert says in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[1, 2]", "cannot be read"),
        ("{}", "'hidden_size'"),
        ('{"hidden_size": 8, "num_hidden_layers": 1e400}', "num_hidden_layers"),
        ("\x00\xff", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_mangled_config_is_told(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path, text: str, says: str
):
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    code, out = plan(capsys, data_dir, "--model", str(file), "--context", "10")
    assert code == 1
    assert says in out
    assert len(out.splitlines()) == 1
