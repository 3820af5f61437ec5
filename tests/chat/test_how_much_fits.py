"""How long a text fits is one answer: in the frame, the settings, the models, the calculator, in
`plan`, and in what the chat decides by. And that answer is what the pool allocates.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.cli import main
from kvchat.cli_plan.telling import fits_line
from kvchat.device.memory import pick_device
from kvchat.engine.events import Request
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import FormatPair
from kvchat.planner.costs import Costs
from kvchat.ui.calls.models import ModelCalls
from kvchat.ui.calls.whatif import WhatIfCalls
from kvchat.ui.consequences import consequences
from tests.chat.conftest import Start
from tests.engine.conftest import MakeEngine, load_tiny, make_engine  # noqa: F401

TIGHT = "3 MiB"


@pytest.mark.parametrize(
    ("flags", "helps"),
    [
        ({}, ["shrink_chunk"]),
        ({"seal_format": "int8", "floor_format": "int4"}, ["shrink_chunk"]),
        ({"host_quota": "64 KiB", "ladder": "offload", "prefill_chunk": "64"}, ["offload"]),
        ({"ladder": "truncate_turns", "sink_tokens": "0"}, []),
        ({"layer_formats": "0=fp", "newest_tokens": "100"}, ["shrink_chunk"]),
    ],
)
def test_every_screen_says_the_same(
    start: Start,
    data_dir: Path,
    capsys: pytest.CaptureFixture[str],
    flags: dict[str, Any],
    helps: list[str],
) -> None:
    talks = start(memory_budget=TIGHT, **flags)
    engine, model = talks.loading.engine, talks.settings.model
    assert engine is not None
    fits = engine.fits()
    found = fits.row()
    assert found["helps"] == helps
    assert (fits.most_tokens > fits.tokens) == bool(helps)
    until = time.monotonic() + 20
    while (shown := talks.frame())["fits"] is None and time.monotonic() < until:
        time.sleep(0.02)
    assert shown["fits"] == found
    assert shown["kv"]["capacity_tokens"] == found["most_tokens"]
    assert consequences(talks, {}, "en")["now"]["fits"] == found
    asked = {"model": model, "context": 300, "card": 0}
    assert WhatIfCalls(talks, "en").whatif(asked)["longest"] == found
    ways = ModelCalls(talks, "en").model_ways({"model": model})["ways"]
    (running,) = [
        one for one in ways if (one["dtype"], one["weights"]) == (talks.loading.dtype, "as-is")
    ]
    assert running["longest"] == found
    assert len(ways) > 2
    for way in ways:  # in other precisions, too
        precision = {name: way[name] for name in ("dtype", "weights")}
        assert WhatIfCalls(talks, "en").whatif(asked | precision)["longest"] == way["longest"]
    if pick_device().type != "cpu":
        return  # `plan` knows no card's kernels: what it counts for them is more
    given = [f"--set={name}={value}" for name, value in flags.items()]
    about = ["plan", "--model", model, "--memory-budget", TIGHT, "--data-dir", str(data_dir)]
    capsys.readouterr()
    assert main([*about, *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["longest"] == found
    assert main([*about, *given, "--lang", "ko"]) == 0
    assert fits_line(found, "ko") in capsys.readouterr().out


def test_formats_that_nobody_measured_are_hoped_for_and_not_counted(
    start: Start, data_dir: Path
) -> None:
    talks = start(memory_budget=TIGHT)
    counted = ModelCalls(talks, "en").model_ways({"model": talks.settings.model})["ways"][0]
    (data_dir / "verdicts.json").unlink()
    found = ModelCalls(talks, "en").model_ways({"model": talks.settings.model})["ways"][0]
    assert counted["hoped_tokens"] == 0
    assert found["longest"]["most_tokens"] < found["hoped_tokens"]
    assert found["hoped_tokens"] == counted["longest"]["most_tokens"]


@pytest.mark.parametrize("pair", ["fp", "int8", "int6/int4"])
@pytest.mark.parametrize(
    ("num_tokens", "chunk"), [(40, 32), (100, 512), (400, 512), (600, 512), (1000, 64)]
)
def test_what_is_foretold_of_a_text_is_what_the_pool_allocates(
    make_engine: MakeEngine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    pair: str,
    num_tokens: int,
    chunk: int,
) -> None:
    """Blocks and hot window of a text at the end of its last chunk, to the byte: as the calculator
    has them, from the model's shape alone.
    """
    engine = make_engine()
    stored = FormatPair.parse(pair)
    engine.pool.storing = Storing(stored, stored)
    most, commit = 0, Sequence.commit

    def seen(self: Sequence, ids: Any) -> None:
        nonlocal most
        pool = engine.pool
        most = max(most, pool.device_bytes - pool.free_block_bytes - pool.idle_bytes)
        commit(self, ids)

    monkeypatch.setattr(Sequence, "commit", seen)
    ids = tuple(range(5, 5 + num_tokens % 400)) + tuple(range(5, 405)) * (num_tokens // 400)
    list(engine.run(Request(ids, (), max_new_tokens=1, prefill_chunk=chunk)))
    costs = Costs.of(engine.loaded.spec, torch.float32, "cpu").stored_in(stored)
    foretold = costs.footprint(num_tokens, chunk)
    assert foretold.kv_device + foretold.workspace == most
