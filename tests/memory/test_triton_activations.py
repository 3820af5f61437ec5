"""The estimate for a card whose kernels read blocks where they lie, against what the same steps
keep alive in Triton's interpreter.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context

import pytest
import torch

from kvchat.arch.from_hf import spec_from_config
from kvchat.attention import choose
from kvchat.kvcache.blocks import geometries
from kvchat.memory.activations import activation_bytes
from kvchat.memory.formats import FormatPair
from tests.memory.test_activations import COMMON
from tests.memory.triton_peak import peaks


@pytest.fixture(scope="module")
def interpreting() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(int).result()  # the process begins with this
        yield pool


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("stored", ["fp", "int8", "int6/int4"])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gemma3"])
def test_between_one_and_two_times_what_a_step_keeps_alive(
    name: str, stored: str, interpreting: ProcessPoolExecutor
) -> None:
    steps = interpreting.submit(peaks, name, 128, 300, stored).result()
    chunks = [step for step in steps if step[0] > 1]
    assert len(chunks) == 3
    assert [one for one in chunks if not one[3] <= one[2] <= 2 * one[3]] == []
    # The first decode step makes buffers that stay.
    assert [one for one in steps[4:] if not one[3] <= one[2]] == []


def test_a_card_of_which_nothing_else_is_known_takes_the_greater() -> None:
    spec = spec_from_config(COMMON | {"model_type": "llama"}, name="x")
    for chunk, context in ((1, 64), (1, 8192), (256, 256), (256, 8192)):
        known = activation_bytes(spec, chunk, context, 2, "triton")
        unknown = activation_bytes(spec, chunk, context, 2, "cuda")
        assert known <= unknown
    assert activation_bytes(spec, 256, 8192, 2, "triton") < 1.5 * activation_bytes(
        spec, 256, 256, 2, "triton"
    )
    assert activation_bytes(spec, 256, 8192, 2, "cuda") > activation_bytes(
        spec, 256, 256, 2, "cuda"
    )


@pytest.mark.parametrize(
    ("kind", "pairs", "expected"),
    [
        ("cuda", ("fp", "int8", "int6/int4"), True),
        ("cuda", ("fp", "quanto4"), False),
        ("cpu", ("fp",), False),
    ],
)
def test_nothing_is_gathered_where_kernels_run_all_formats_of_all_layers(
    kind: str, pairs: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "why_not", lambda key_dim, *_: None if key_dim == 64 else "dims")
    device, stored = torch.device(kind), [FormatPair.parse(pair) for pair in pairs]
    spec = spec_from_config(COMMON | {"model_type": "qwen3", "head_dim": 64}, name="x")
    served = geometries(spec, torch.float16)
    assert choose.reads_in_place(served, device, stored) is expected
    odd = geometries(spec_from_config(COMMON | {"model_type": "llama"}, name="x"), torch.float16)
    assert not choose.reads_in_place((*served, *odd), device, stored)
