"""What a model cannot go back to is read again, exactly that, and said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Took
from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import Block
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.models.load import load_model
from kvchat.settings import RUNGS
from kvchat.units import GIB
from kvchat.wording import say
from tests.arch.models import config_json
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import done, random_ids, request
from tests.tiny import tiny_tokenizer

IDS = random_ids(400, 61)
CUT = (*IDS[:300], 7, 8, 9)


def answer(engine: Engine, ids: tuple[int, ...]) -> tuple[Done, list[dict[str, Any]]]:
    events: list[Event] = list(engine.run(request(ids)))
    entries = [event.entry for event in events if isinstance(event, Took)]
    return done(events), [one for one in entries if one["code"] == "read_again"]


def left_windows(engine: Engine) -> list[Block]:
    """Idle blocks of layers with a window, of which the end of the text no longer sees any."""
    geometries = engine.pool.geometries
    return [
        one
        for one in engine.pool.idle("device")
        if geometries[one.group].window is not None and one.depth < len(IDS) // BLOCK_TOKENS - 1
    ]


def test_what_left_a_window_is_read_again_and_said(make_engine: MakeEngine) -> None:
    """Idle blocks go in the order in which they were used last: those behind a window first."""
    engine = make_engine("gemma3")
    answer(engine, IDS)
    there, told = answer(engine, CUT)
    assert told == []  # they were idle, not gone
    assert there.figures.reused_tokens == 300
    engine = make_engine("gemma3")
    answer(engine, IDS)
    engine.close_text()
    for tail in list(engine.pool.index.tails):
        engine.pool.drop_tail(tail)
    gone = left_windows(engine)
    assert engine.pool.drop_idle(sum(one.nbytes for one in gone))[0] == len(gone)
    assert left_windows(engine) == []
    again, told = answer(engine, CUT)
    assert [one["reason"] for one in told] == ["window_left"]
    held = len(CUT) // BLOCK_TOKENS * BLOCK_TOKENS
    assert told[0]["arguments"]["tokens"] == held - again.figures.reused_tokens > 0
    assert again.ids == there.ids
    for lang in ("en", "ko"):
        assert str(held) in say("ledger.read_again", lang, tokens=held)
        assert say("reason.window_left", lang)


def test_a_longer_text_reads_nothing_again(make_engine: MakeEngine) -> None:
    engine = make_engine("gemma3")
    first, told = answer(engine, IDS)
    assert told == []
    longer, told = answer(engine, (*IDS, *first.ids, 5))
    assert told == []
    assert longer.figures.reused_tokens == len(IDS) + len(first.ids) - 1


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Layers of the library's own: it can only go on from where it ended."""
    config = config_json("latent") | {"vocab_size": len(tiny_tokenizer())}
    asked = AutoConfig.for_model(config.pop("model_type"), **config)
    folder: Path = tmp_path_factory.mktemp("latent") / "latent"
    AutoModelForCausalLM.from_config(asked, dtype=torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    loaded = load_model(str(folder), data_dir=folder.parent, device=torch.device("cpu"))
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    return Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, RUNGS))


def test_a_model_that_cannot_go_back_says_so(latent: Engine) -> None:
    first, told = answer(latent, IDS)
    assert (first.figures.reused_tokens, told) == (0, [])
    longer, told = answer(latent, (*IDS, *first.ids, 5))
    assert (longer.figures.reused_tokens, told) == (len(IDS) + len(first.ids) - 1, [])
    again, told = answer(latent, CUT)
    assert again.figures.reused_tokens == 0
    assert [(one["arguments"]["tokens"], one["reason"]) for one in told] == [
        (300, "cannot_go_back")
    ]
    other, told = answer(latent, random_ids(50, 62))
    assert (other.figures.reused_tokens, told) == (0, [])
