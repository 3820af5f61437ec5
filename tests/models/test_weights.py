"""Foretold bytes = the bytes that torch holds, for every kind, dtype and way of holding weights."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from kvchat.models.folder import examine
from kvchat.models.progress import LoadProgress, Report, silent
from kvchat.models.weights import build, predicted_weight_bytes, weight_bytes
from tests.tiny import tiny_folder

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(request.param, tmp_path_factory.mktemp("models") / "m", dtype=torch.bfloat16)


def built(folder: Path, dtype: torch.dtype, weights: str) -> nn.Module:
    return build(examine(folder), dtype, weights, CPU, Report(silent))


@pytest.mark.parametrize("weights", ["as-is", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_foretold_bytes_are_the_measured_ones(
    folder: Path, dtype: torch.dtype, weights: str
) -> None:
    measured = weight_bytes(built(folder, dtype, weights))
    assert predicted_weight_bytes(folder, dtype, weights) == measured


def test_bytes_as_they_are_are_parameters_times_their_size(folder: Path) -> None:
    """Rotary frequencies and a scale or two apart, which are fp32 buffers."""
    model = built(folder, torch.bfloat16, "as-is")
    buffers = {b.untyped_storage().data_ptr(): b.nbytes for b in model.buffers()}
    parameters = sum(p.numel() for p in model.parameters())
    assert weight_bytes(model) == 2 * parameters + sum(buffers.values())


def test_int8_is_a_byte_a_weight_and_a_scale_a_row(folder: Path) -> None:
    whole = built(folder, torch.float32, "as-is")
    linear = [m for n, m in whole.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    saved = sum(3 * m.weight.numel() - 4 * m.out_features - 8 for m in linear)
    assert weight_bytes(whole) - weight_bytes(built(folder, torch.float32, "int8")) == saved


def test_tied_weights_count_once(tmp_path: Path) -> None:
    sizes = {
        tied: predicted_weight_bytes(
            tiny_folder("llama", tmp_path / str(tied), tie_word_embeddings=tied), torch.float32
        )
        for tied in (True, False)
    }
    assert sizes[False] - sizes[True] == 512 * 64 * 4


def test_the_weights_are_the_files(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    found = built(folder, torch.float32, "as-is").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_int8_answers_nearly_as_before(folder: Path) -> None:
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        before = built(folder, torch.float32, "as-is")(ids).logits[0].log_softmax(-1)
        after = built(folder, torch.float32, "int8")(ids).logits[0].log_softmax(-1)
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    assert 0 < divergence < 0.02


def test_every_stored_byte_is_told_once(folder: Path) -> None:
    told: list[LoadProgress] = []
    build(examine(folder), torch.float32, "as-is", CPU, Report(told.append))
    assert {one.stage for one in told} == {"weights"}
    done = [one.done_bytes for one in told]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == told[-1].total_bytes
    file = folder / "model.safetensors"
    assert 0 < file.stat().st_size - told[-1].total_bytes < 20_000  # its header


def test_models_are_counted_right_by_many_threads_at_once(tmp_path: Path) -> None:
    """The library has one default dtype for all threads while it loads."""
    folder = tiny_folder("llama", tmp_path / "tiny")
    ways = [
        (dtype, kind) for dtype in (torch.float32, torch.bfloat16) for kind in ("as-is", "int8")
    ]
    alone = {way: predicted_weight_bytes(folder, *way) for way in ways}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda way: predicted_weight_bytes(folder, *way), ways * 6))
    assert found == [alone[way] for way in ways * 6]
