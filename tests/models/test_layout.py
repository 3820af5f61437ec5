"""Weights by columns: the same values and results, each weight once, only where that is quicker and
where there is room.
"""

import pytest
import torch
from optimum.quanto.nn import QModuleMixin
from torch import nn

from kvchat.models import layout
from kvchat.models.layout import columns_are_quicker, lay_out
from kvchat.models.load import load_model, unload
from tests.tiny import tiny_folder


class Tied(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 32, dtype=dtype)
        self.first = nn.Linear(32, 48, dtype=dtype)
        self.second = nn.Linear(48, 32, bias=False, dtype=dtype)
        self.head = nn.Linear(32, 96, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(self.embed(ids))))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(layout, "LEAST_BYTES", 1024)


def test_values_shapes_ties_and_results_stay():
    model, ids = Tied(), torch.arange(7)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    expected = model(ids)
    assert lay_out(model, 1 << 20, lambda _: True) == 3
    assert model.head.weight is model.embed.weight
    for name, one in model.named_parameters():
        assert torch.equal(one, before[name])
        assert one.shape == before[name].shape
    assert model.head.weight.stride() == (1, 96)
    torch.testing.assert_close(model(ids), expected)


def test_nothing_is_turned_twice():
    model = Tied()
    assert lay_out(model, 1 << 20, lambda _: True) == 3
    assert lay_out(model, 1 << 20, lambda _: True) == 0


def test_what_is_slower_stays():
    model = Tied()
    assert lay_out(model, 1 << 20, lambda _: False) == 0
    assert all(one.is_contiguous() for one in model.parameters())


def test_a_matrix_that_has_no_room_beside_itself_stays():
    model = Tied()
    largest = model.head.weight.nbytes
    turned = lay_out(model, largest - 1, lambda _: True)
    assert model.head.weight.is_contiguous()
    assert turned in (0, 2)


def test_without_room_for_a_sample_nothing_is_tried():
    def refuse(_):
        raise AssertionError("tried")

    assert lay_out(Tied(), 2000, refuse) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_stay_by_rows(dtype):
    model = Tied(dtype)
    assert lay_out(model, 1 << 20, lambda _: True) == 0


def test_weights_in_int8_stay_as_they_are(tmp_path):
    """Beside them the output layer, which holds floats, is turned."""
    folder = tiny_folder("llama", tmp_path / "model")
    loaded = load_model(str(folder), data_dir=tmp_path, weights="int8")
    coded = [one for one in loaded.model.modules() if isinstance(one, QModuleMixin)]
    before = [(one.weight.stride(), one.weight._data.stride()) for one in coded]
    assert coded
    assert lay_out(loaded.model, 1 << 20, lambda _: True) == 1
    assert [(one.weight.stride(), one.weight._data.stride()) for one in coded] == before
    assert not loaded.model.lm_head.weight.is_contiguous()
    unload(loaded)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_without_memory_for_a_copy_the_rest_stays(monkeypatch, at):
    model, ids, calls = Tied(), torch.arange(7), 0
    right, expected = layout._by_columns, model(ids)

    def failing(weight):
        nonlocal calls
        calls += 1
        if calls > at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return right(weight)

    monkeypatch.setattr(layout, "_by_columns", failing)
    assert lay_out(model, 1 << 20, lambda _: True) == at
    torch.testing.assert_close(model(ids), expected)
    assert lay_out(Tied(), 1 << 20) == 0, "nor for the trial"


def test_the_trial_takes_any_shapes_and_changes_nothing():
    weights = [torch.randn(48, 32), torch.randn(16, 64)]
    kept = [one.clone() for one in weights]
    assert columns_are_quicker(weights) in (True, False)
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(weights, kept, strict=True))
