"""The footprint: published rows, formulas against allocations, and the exact inverse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.kvcache.blocks import FP, HotWindow, geometries, shape_of
from kvchat.kvcache.pool import Storing
from kvchat.memory.footprint import (
    BLOCK_TOKENS,
    Footprint,
    Holding,
    block_bytes,
    footprint_of,
    kv_bytes,
    largest_context,
    paged_layers,
)
from kvchat.memory.formats import FORMATS, FormatPair, layer_pairs
from kvchat.planner.costs import Costs
from kvchat.units import GIB
from kvchat.wording import LANGUAGES
from tests.arch.models import CONFIGS, config_json


def spec_of(*layers: LayerSpec, weight_bytes: int = 1000, max_positions: int = 8192) -> ModelSpec:
    return ModelSpec("x", layers, 64, 96, 128, 8, weight_bytes, max_positions)


LLAMA_3_70B = spec_of(*[LayerSpec("full", 8, 128, 128)] * 80)


def test_the_published_row_that_is_wrong_by_half_elsewhere():
    assert kv_bytes(LLAMA_3_70B, 1, 16, 16) == 327_680
    assert kv_bytes(LLAMA_3_70B, 4_096, 16, 16) == 1.25 * GIB
    assert round(kv_bytes(LLAMA_3_70B, 32_000, 16, 16) / GIB, 2) == 9.77
    assert kv_bytes(LLAMA_3_70B, 131_072, 16, 16) == 40 * GIB
    assert kv_bytes(LLAMA_3_70B, 131_072, 8, 8) == 20 * GIB


def test_keys_and_values_have_formats_of_their_own():
    layer = LayerSpec("full", 2, 64, 32)
    assert Holding(key_format="int8", value_format="int4").token_bytes(layer, 0) == 2 * (66 + 18)
    assert kv_bytes(spec_of(layer), 10, 8, 4) == 10 * 2 * (64 + 16)


def test_layers_hold_what_their_kind_holds():
    full, sliding = LayerSpec("full", 2, 16, 16), LayerSpec("sliding", 2, 16, 16, window=100)
    shared = LayerSpec("full", 2, 16, 16, shares_with=0)
    recurrent = LayerSpec("recurrent", recurrent_bytes=500)
    hybrid = LayerSpec("full", 2, 16, 16, recurrent_bytes=70)
    spec = spec_of(full, sliding, shared, recurrent, hybrid, LayerSpec("none"))
    per_token = 2 * 32 * 2
    assert kv_bytes(spec, 50, 16, 16) == per_token * 3 * 50
    assert kv_bytes(spec, 1000, 16, 16) == per_token * (1000 + 100 + 1000)
    assert paged_layers(spec) == {1: sliding, 4: hybrid}
    # 15 blocks of the hybrid layer, 100 + 28 tokens in 3 blocks of the sliding one, and twice the
    # lent layer's KV and all states.
    found = footprint_of(spec, 960, Holding(chunk_tokens=28)).kv_device
    assert found == per_token * (960 + 3 * 64) + 2 * (per_token * 960 + 570)


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("kind", CONFIGS)
def test_plan_and_engine_count_the_same(kind: str, num_tokens: int):
    """What `plan` shows before loading is what the planner allows after it, to the byte."""
    spec = spec_from_config(config_json(kind), name=kind, dtype_bytes=4)
    costs = Costs(spec, geometries(spec, torch.float32), 4, spec.weight_bytes)
    planned = footprint_of(spec, num_tokens, Holding(256, dtype_bytes=4))
    in_engine = costs.footprint(num_tokens, 256)
    assert planned.kv_device == in_engine.kv_device
    assert planned.workspace == in_engine.workspace
    assert planned.weights == in_engine.weights


@pytest.mark.parametrize("text", ["", "0=int8", "-1=fp/int8, 0=int4/int8", "0--1=fp"])
@pytest.mark.parametrize("pair", ["int8/int8", "int6/int4", "quanto4/quanto4"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_plan_and_engine_count_the_same_in_any_formats(kind: str, pair: str, text: str):
    """With sinks and lowest formats of layers too; and of head sizes that a format cannot store."""
    spec = spec_from_config(config_json(kind), name=kind, dtype_bytes=4)
    least, formats = layer_pairs(text, len(spec.layers)), FormatPair.parse(pair)
    groups = geometries(spec, torch.float32, least)
    storing = Storing(formats, formats, 100)
    costs = Costs(spec, groups, 4, spec.weight_bytes, storing=storing)
    key, value = pair.split("/")
    holding = Holding(256, key, value, 4, sink_tokens=100, least=least)
    for num_tokens in (100, 700, 3000):
        planned = footprint_of(spec, num_tokens, holding)
        assert planned.kv_device == costs.footprint(num_tokens, 256).kv_device
        assert planned.workspace == costs.footprint(num_tokens, 256).workspace


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
        assert window.nbytes == block_bytes(spec, geometry.layers, dtype.itemsize)
        assert window.nbytes == shape_of(geometry, FP).block_bytes


def test_the_hot_window_is_wider_where_more_is_lost():
    assert Holding().hot_tokens == 64
    assert Holding(key_format="int8").hot_tokens == 128
    assert Holding(key_format="int8", value_format="int8").hot_tokens == 128
    assert Holding(key_format="int6", value_format="int4").hot_tokens == 320


def test_formats_do_not_touch_what_is_not_in_blocks():
    latent = spec_of(LayerSpec("latent", 1, 64, 16, work_values=400))
    narrow = Holding(key_format="int4", value_format="int4")
    assert footprint_of(latent, 1000, narrow) == footprint_of(latent, 1000, Holding())


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
    st.builds(
        Holding,
        chunk_tokens=st.sampled_from([16, 512]),
        key_format=st.sampled_from(list(FORMATS)),
        value_format=st.sampled_from(list(FORMATS)),
        dtype_bytes=st.sampled_from([2, 4]),
        device_type=st.sampled_from(["cpu", "cuda"]),
    ),
)
@settings(max_examples=300, deadline=None)
def test_the_largest_context_is_the_last_one_that_fits(
    chosen: list[LayerSpec], usable: int, holding: Holding
):
    spec = spec_of(*chosen, max_positions=5000)
    found = largest_context(spec, usable, holding)
    assert 0 <= found <= spec.max_positions
    if found:
        assert footprint_of(spec, found, holding).total <= usable
    if found < spec.max_positions:
        assert footprint_of(spec, found + 1, holding).total > usable


@given(st.lists(layers, min_size=1, max_size=8), st.integers(1, 4000), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_a_longer_text_never_takes_less(chosen: list[LayerSpec], shorter: int, more: int):
    spec = spec_of(*chosen)
    one, two = (footprint_of(spec, n, Holding(64)).total for n in (shorter, shorter + more))
    assert one <= two


def test_nothing_fits_beside_weights_that_do_not():
    spec = spec_of(LayerSpec("full", 2, 64, 64), weight_bytes=10**9)
    assert largest_context(spec, 10**9, Holding()) == 0
