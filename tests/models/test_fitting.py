"""Before a model is loaded: whether it can fit, and what would."""

from pathlib import Path

import pytest
import torch

from kvchat.errors import OutOfMemory
from kvchat.models.catalog import catalog
from kvchat.models.fitting import (
    LEAST_TEXT,
    does_not_fit,
    least_bytes,
    models_that_fit,
    refuse_too_large,
    spec_of_folder,
    ways_to_fit,
)
from kvchat.models.load import load_model, unload
from kvchat.models.weights import predicted_weight_bytes
from kvchat.planner.costs import Costs
from kvchat.planner.plan import LEAST_CHUNK
from kvchat.ui.words import problem
from kvchat.units import GIB, KIB, MIB
from kvchat.wording import LANGUAGES, say
from tests.tiny import tiny_folder

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
FP32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of its weights are matrices of its layers, so that every precision differs."""
    return tiny_folder(
        "llama", tmp_path_factory.mktemp("m") / "tiny", hidden_size=256, intermediate_size=2048
    )


def needed(folder: Path, dtype: torch.dtype, weights: str, device: torch.device = CPU) -> int:
    spec = spec_of_folder(folder, dtype, predicted_weight_bytes(folder, dtype, weights))
    return least_bytes(spec, dtype.itemsize, device)


def test_what_is_needed_at_least_is_weights_and_one_short_answer(folder: Path) -> None:
    spec = spec_of_folder(folder, FP32, 5 * MIB)
    expected = Costs.of(spec, FP32, "cpu").footprint(LEAST_TEXT, LEAST_CHUNK)
    assert least_bytes(spec, 4, CPU) == expected.total > 5 * MIB
    assert expected.weights == 5 * MIB


@pytest.mark.parametrize("short", [0, 1])
def test_a_model_is_refused_exactly_where_it_does_not_fit(folder: Path, short: int) -> None:
    allowed = needed(folder, FP32, "as-is") - short
    if not short:
        refuse_too_large(folder, FP32, "as-is", allowed, CPU)
        return
    with pytest.raises(OutOfMemory) as caught:
        refuse_too_large(folder, FP32, "as-is", allowed, CPU)
    assert caught.value.code == "budget_fits_smaller"
    assert "--dtype bf16" in caught.value.remedy()
    assert "--weights int8" in caught.value.remedy()


def test_ways_to_fit_are_smaller_and_fit(folder: Path) -> None:
    sizes = {
        "--dtype bf16": needed(folder, BF16, "as-is"),
        "--weights int8": needed(folder, FP32, "int8"),
        "--dtype bf16 --weights int8": needed(folder, BF16, "int8"),
    }
    for allowed in (10, *sizes.values(), needed(folder, FP32, "as-is") - 1):
        found = {one.name: one for one in ways_to_fit(folder, FP32, "as-is", allowed, CPU)}
        assert set(found) == {name for name, size in sizes.items() if size <= allowed}
        for name, one in found.items():
            assert one.needed_bytes == sizes[name] <= allowed
            assert one.tokens >= LEAST_TEXT


def test_what_was_asked_for_is_not_proposed_again(folder: Path) -> None:
    allowed = 10 * GIB
    assert [w.name for w in ways_to_fit(folder, BF16, "as-is", allowed, CPU)] == ["--weights int8"]
    assert list(ways_to_fit(folder, BF16, "int8", allowed, CPU)) == []
    assert [w.name for w in ways_to_fit(folder, FP32, "int8", allowed, CPU)] == ["--dtype bf16"]


def test_models_that_fit_are_the_largest_first() -> None:
    found = models_that_fit(10 * GIB, CARD)
    names = [one.name for one in found]
    order = list(catalog())
    assert names == [name for name in reversed(order) if name in names]
    assert "Qwen3-4B-Instruct-2507" in names
    assert "Llama-3.1-8B-Instruct" not in names
    assert all(one.needed_bytes <= 10 * GIB and one.tokens >= LEAST_TEXT for one in found)
    assert [one.name for one in models_that_fit(700 * MIB, CPU)] == ["smollm2"]
    assert models_that_fit(MIB, CPU) == []


@pytest.mark.parametrize(
    ("allowed", "device", "code", "said"),
    [
        (10 * KIB, CPU, "budget_below_weights", ["--dtype"]),
        (-5, CPU, "budget_below_weights", ["0 B"]),
        (None, CPU, "budget_fits_smaller", ["--dtype bf16", "tokens"]),
        (2 * GIB, CPU, "budget_fits_otherwise", ["--dtype bf16", "smollm2"]),
        (4 * GIB, CARD, "budget_fits_otherwise", ["--dtype bf16", "EXAONE-4.0-1.2B"]),
    ],
)
def test_the_refusal_says_what_fits(
    folder: Path, allowed: int | None, device: torch.device, code: str, said: list[str]
) -> None:
    if allowed is None:
        allowed = needed(folder, FP32, "as-is", device) - 1
    error = does_not_fit(folder, FP32, "as-is", allowed, device)
    assert error.code == code
    for words in said:
        assert words in error.line()
    for lang in LANGUAGES:
        assert error.message(lang)
        assert error.remedy(lang)
        told, kept = problem(error, lang), problem(error.row(), lang)
        assert told == kept
        assert told is not None
        assert "--" not in told["remedy"], "on the screen nobody types flags"
        assert say("ui.tab.models", lang) in told["remedy"]
        if code != "budget_below_weights":
            assert "bf16 (" in told["remedy"]
            assert "torch" not in told["remedy"]


def test_where_only_another_model_fits_it_is_named(tmp_path: Path) -> None:
    folder = tiny_folder("llama", tmp_path / "m", num_hidden_layers=1)
    error = does_not_fit(folder, BF16, "int8", 2 * GIB, CPU)
    assert error.code == "budget_fits_another"
    assert "smollm2" in error.remedy()


def test_memory_taken_between_the_check_and_the_load_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C25: another program was quicker. Nothing is left of the load, and a smaller model loads."""
    from kvchat.errors import ModelError
    from kvchat.models.weights import StoredTensor

    checked: list[Path] = []
    limit = 1 * MIB
    read, held = StoredTensor.__getitem__, 0

    def taken(self: StoredTensor, part: object) -> torch.Tensor:
        nonlocal held
        tensor = read(self, part)
        if tensor.is_meta:
            return tensor
        held += self.nbytes
        if held > limit:
            raise RuntimeError("CUDA error: out of memory")
        return tensor

    def check(path: Path, dtype: torch.dtype) -> None:
        refuse_too_large(path, dtype, "as-is", 10 * GIB, CPU)
        checked.append(path)

    monkeypatch.setattr(StoredTensor, "__getitem__", taken)
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), data_dir=tmp_path, device=CPU, check=check)
    assert checked == [folder]
    assert caught.value.code == "model_does_not_fit"
    assert "\n" not in caught.value.line()
    held = 0
    small = tiny_folder("llama", tmp_path / "small", num_hidden_layers=1)
    found = load_model(str(small), data_dir=tmp_path, device=CPU, check=check)
    assert found.weight_bytes < limit
    unload(found)
