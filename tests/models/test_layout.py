"""Weights by columns: the same values and results, each weight once, only where that is quicker and
where there is room.
"""

import pytest
import torch
from torch import nn

from kvchat.models import layout
from kvchat.models.layout import columns_are_quicker, lay_out


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


def test_the_trial_takes_any_shapes_and_changes_nothing():
    weights = [torch.randn(48, 32), torch.randn(16, 64)]
    kept = [one.clone() for one in weights]
    assert columns_are_quicker(weights) in (True, False)
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(weights, kept, strict=True))
