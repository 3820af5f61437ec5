"""The footprint: published rows, formulas against allocations, and the exact inverse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.kvcache.blocks import FP, HotWindow, geometries, shape_of
from kvchat.memory.footprint import BLOCK_TOKENS, Footprint, kv_bytes
from kvchat.memory.formats import FormatPair, layer_pairs
from kvchat.planner.costs import Costs
from kvchat.units import GIB
from kvchat.wording import LANGUAGES
from tests.arch.models import CONFIGS, config_json

FP16 = torch.float16


def spec_of(*layers: LayerSpec, weight_bytes: int = 1000, max_positions: int = 8192) -> ModelSpec:
    return ModelSpec("x", layers, 64, 96, 128, 8, weight_bytes, max_positions)


LLAMA_3_70B = spec_of(*[LayerSpec("full", 8, 128, 128)] * 80)


def test_the_published_row_that_is_wrong_by_half_elsewhere():
    assert kv_bytes(LLAMA_3_70B, 1, 16, 16) == 327_680
    assert kv_bytes(LLAMA_3_70B, 4_096, 16, 16) == 1.25 * GIB
    assert round(kv_bytes(LLAMA_3_70B, 32_000, 16, 16) / GIB, 2) == 9.77
    assert kv_bytes(LLAMA_3_70B, 131_072, 16, 16) == 40 * GIB
    assert kv_bytes(LLAMA_3_70B, 131_072, 8, 8) == 20 * GIB


def costs_of(spec: ModelSpec, text: str = "fp/fp", dtype: torch.dtype = FP16) -> Costs:
    return Costs.of(spec, dtype).stored_in(FormatPair.parse(text))


def test_keys_and_values_have_formats_of_their_own():
    spec = spec_of(LayerSpec("full", 2, 64, 32))
    assert costs_of(spec, "int8/int4").token_bytes() == 2 * (66 + 18)
    assert kv_bytes(spec, 10, 8, 4) == 10 * 2 * (64 + 16)


def test_layers_hold_what_their_kind_holds():
    full, sliding = LayerSpec("full", 2, 16, 16), LayerSpec("sliding", 2, 16, 16, window=100)
    shared = LayerSpec("full", 2, 16, 16, shares_with=0)
    recurrent = LayerSpec("recurrent", recurrent_bytes=500)
    hybrid = LayerSpec("full", 2, 16, 16, recurrent_bytes=70)
    spec = spec_of(full, sliding, shared, recurrent, hybrid, LayerSpec("none"))
    per_token = 2 * 32 * 2
    assert kv_bytes(spec, 50, 16, 16) == per_token * 3 * 50
    assert kv_bytes(spec, 1000, 16, 16) == per_token * (1000 + 100 + 1000)
    assert [one.layers for one in geometries(spec, FP16)] == [(1,), (4,)]
    # 15 blocks of the hybrid layer, 100 + 28 tokens in 3 blocks of the sliding one, and twice the
    # lent layer's KV and all states.
    found = costs_of(spec).footprint(960, 28).kv_device
    assert found == per_token * (960 + 3 * 64) + 2 * (per_token * 960 + 570)


def test_layers_with_a_lowest_format_are_a_group_of_their_own():
    spec = spec_of(*[LayerSpec("full", 2, 64, 64)] * 4, LayerSpec("full", 1, 32, 32))
    least = layer_pairs("1=int8, 3=int8, 4=fp", 5)
    found = geometries(spec, torch.float16, least)
    assert [(one.layers, str(one.least)) for one in found] == [
        ((0, 2), "None"), ((1, 3), "int8/int8"), ((4,), "fp/fp"),
    ]  # fmt: skip
    asked = FormatPair.parse("int6/int4")
    assert [str(one.served(asked)) for one in found] == ["int6/int4", "int8/int8", "fp/fp"]
    assert geometries(spec, torch.float16) == geometries(spec, torch.float16, {})


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_takes_what_torch_allocates_for_it(kind: str, dtype: torch.dtype):
    spec = spec_from_config(config_json(kind), name=kind)
    for geometry in geometries(spec, dtype):
        window = HotWindow(geometry, BLOCK_TOKENS, torch.device("cpu"))
        values = sum(spec.layers[i].values_per_token for i in geometry.layers)
        assert window.nbytes == BLOCK_TOKENS * values * dtype.itemsize
        assert window.nbytes == shape_of(geometry, FP).block_bytes


@pytest.mark.parametrize(
    ("pair", "tokens"), [("fp", 64), ("int8/fp", 128), ("int8", 128), ("int6/int4", 320)]
)
def test_the_hot_window_is_wider_where_more_is_lost(pair: str, tokens: int):
    """And no longer than the text where that is short: what is read in one chunk is all of it."""
    spec = spec_of(LayerSpec("full", 2, 64, 64))
    costs, a_token = costs_of(spec, pair), kv_bytes(spec, 1, 16, 16)
    for text, chunk, hot in ((5000, 100, tokens + 100), (1, 512, tokens), (400, 512, 400)):
        assert costs.footprint(text, chunk).workspace == a_token * hot


def test_formats_do_not_touch_what_is_not_in_blocks():
    latent = spec_of(LayerSpec("latent", 1, 64, 16, work_values=400))
    found = [costs_of(latent, one).footprint(1000, 512) for one in ("fp", "int4/int4")]
    assert found[0].kv_device == found[1].kv_device
    assert found[0].workspace == found[1].workspace == 0


def test_host_and_disk_are_not_on_the_device():
    found = Footprint(1, 2, 1000, 1000, 4, 8, 16)
    assert found.total == 31


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_table_shows_what_is_there_and_the_total(lang: str):
    rows = Footprint(2**30, 2**20, 0, 0, 0, 0, 0).table(lang)
    assert [size for _, size in rows] == ["1.00 GiB", "1.0 MiB", "1.00 GiB"]


layers = st.sampled_from(
    [
        LayerSpec("full", 2, 64, 64),
        LayerSpec("full", 8, 128, 96),
        LayerSpec("sliding", 2, 64, 64, window=100),
        LayerSpec("latent", 1, 64, 16, work_values=400),
        LayerSpec("recurrent", recurrent_bytes=12345, work_values=700),
        LayerSpec("full", 2, 64, 64, shares_with=0),
        LayerSpec("none"),
    ]
)


@given(
    st.lists(layers, min_size=1, max_size=8),
    st.integers(0, 3_000_000),
    st.sampled_from([16, 512]),
    st.sampled_from(["fp", "int8", "int8/int4", "int4/fp", "int2", "fp8"]),
    st.sampled_from([torch.float16, torch.float32]),
    st.sampled_from(["cpu", "cuda"]),
)
@settings(max_examples=200, deadline=None)
def test_the_largest_text_is_the_last_one_that_fits(
    chosen: list[LayerSpec], usable: int, chunk: int, pair: str, dtype: torch.dtype, device: str
):
    spec = spec_of(*chosen, max_positions=5000)
    costs = Costs.of(spec, dtype, device).stored_in(FormatPair.parse(pair))
    found = costs.largest_tokens(usable, chunk)
    assert 0 <= found <= spec.max_positions
    if found:
        assert costs.needed_bytes(found, chunk) <= usable
    if found < spec.max_positions:
        assert costs.needed_bytes(found + 1, chunk) > usable


@given(st.lists(layers, min_size=1, max_size=8), st.integers(2, 4000), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_a_longer_text_never_takes_less(chosen: list[LayerSpec], shorter: int, more: int):
    costs = costs_of(spec_of(*chosen))
    assert costs.needed_bytes(shorter, 64) <= costs.needed_bytes(shorter + more, 64)


def test_nothing_fits_beside_weights_that_do_not():
    spec = spec_of(LayerSpec("full", 2, 64, 64), weight_bytes=10**9)
    assert costs_of(spec).largest_tokens(10**9, 512) == 0
