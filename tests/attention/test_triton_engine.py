"""Whole engine runs through the Triton kernels, in Triton's interpreter: prefill chunks and decode
over blocks of several formats, the hot window and the chunk in flight. Every token is the plain
reference's.

The interpreter has to be chosen before triton is first imported, so the runs are in a process of
their own.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_folder

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

_SLIDING = {"sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]}
_SMALL = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
_SMALL |= {"num_hidden_layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3": _SLIDING,
    # softcap over sliding and full layers
    "gemma2": _SLIDING | {"model_type": "gemma2", "attn_logit_softcapping": 20.0},
    # sinks over sliding and full layers
    "gpt_oss": _SLIDING
    | {"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1},
}
DEFAULT = ("gemma2",)
LENGTH, CHUNK, NEW_TOKENS = 270, 110, 6


@pytest.fixture(scope="module")
def interpreting() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(torch.set_num_threads, 1).result()  # the process begins with this
        yield pool


def replies(folder: Path, *, by_reference: bool) -> tuple[list[tuple[int, ...]], Counter[str]]:
    """Two turns' tokens, the second on the cache of the first with some of its blocks stored anew
    and some moved to the host; and how many layers were attended to by the kernels, for decode and
    for prefill, and with blocks of which formats and tiers.
    """
    from kvchat.attention import hf_seam, reference
    from kvchat.attention.triton_paged import attend
    from kvchat.device.fake import FakeProbe
    from kvchat.device.memory import DeviceMemory
    from kvchat.engine.engine import Engine
    from kvchat.engine.events import Done, Request
    from kvchat.engine.limits import Limits
    from kvchat.kvcache.pool import Storing
    from kvchat.memory.formats import FormatPair
    from kvchat.models.load import load_model
    from kvchat.units import GIB

    calls: Counter[str] = Counter()
    right = attend.attend

    def counted(query: Tensor, kv: Any, scoring: Any) -> Tensor:
        calls["decode" if query.shape[2] == 1 else "prefill"] += 1
        calls.update(f"{one.pair} {one.tier}" for one, _ in kv.lying().lists)
        return right(query, kv, scoring)

    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    lowest = FormatPair.parse("int4")
    storing = Storing(FormatPair.parse("int8"), lowest, 64)
    found: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "attend", counted)
        if by_reference:
            patch.setattr(hf_seam, "choose", lambda *_: reference.attend)
        loaded = load_model(str(folder), data_dir=folder, device=torch.device("cpu"))
        engine = Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, (), storing))
        engine.pool.host_limit_bytes = GIB
        random = torch.Generator().manual_seed(7)
        ids = tuple(torch.randint(3, 500, (LENGTH,), generator=random).tolist())
        for _ in range(2):
            *_, done = engine.run(Request(ids, (), NEW_TOKENS, prefill_chunk=CHUNK))
            assert isinstance(done, Done)
            found.append(done.ids)
            engine.close_text()
            for block in list(engine.pool.index.all()):
                if block.depth == 1:
                    engine.pool.requantize(block, FormatPair.parse("int6/int4"))
                if block.depth != 2:
                    engine.pool.offload(block)
            ids = (*ids, *done.ids, 5, 6, 7)
    return found, calls


@pytest.mark.parametrize(
    "kind",
    [one if one in DEFAULT else pytest.param(one, marks=pytest.mark.slow) for one in KINDS],
)
def test_an_engine_writes_the_references_tokens(
    kind: str, tmp_path: Path, interpreting: ProcessPoolExecutor
) -> None:
    base = kind if kind in ("qwen3", "gemma3") else "llama"
    folder = tiny_folder(base, tmp_path / kind, **_SMALL | KINDS[kind])
    expected, none = interpreting.submit(replies, folder, by_reference=True).result()
    found, calls = interpreting.submit(replies, folder, by_reference=False).result()
    assert not none
    assert found == expected
    # Each layer: all tokens but a reply's last are fed one by one, prompts by chunks.
    assert calls["decode"] >= 2 * 2 * (NEW_TOKENS - 1)
    assert calls["prefill"] >= 2 * 3
    for lying in ("fp/fp device", "int8/int8 device", "fp/fp host", "int6/int4 host"):
        assert calls[lying]


def test_the_interpreter_is_taken_only_where_it_is_asked_for(
    tmp_path: Path, interpreting: ProcessPoolExecutor
) -> None:
    assert interpreting.submit(_why_not).result() is None
    assert _why_not() == "no_nvidia_card"


def _why_not() -> str | None:
    from kvchat.attention.triton_paged.table import why_not

    return why_not(64, 64, torch.float32, torch.device("cpu"))
