"""Layers that are never stored in less than a pair of their own: in memory, on disk, anew; and
optimum-quanto's formats in a whole engine.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.limits import USUAL_THREADS, Limits, limits_for
from kvchat.engine.open import open_engine
from kvchat.errors import SettingsError
from kvchat.kvcache.disk import KVFolder
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.tiers import DiskPlace
from kvchat.memory.formats import FormatPair, layer_pairs
from kvchat.models.load import LoadedModel
from kvchat.models.progress import silent
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.engine.test_engine import done, random_ids, request
from tests.starts import resolve
from tests.tiny import tiny_folder

Load = Callable[[str], LoadedModel]
IDS = random_ids(700, 5)
pair = FormatPair.parse


@pytest.fixture
def engine_of(load_tiny: Load, tmp_path: Path) -> Callable[..., Engine]:
    def make(seal: str = "fp", layers: str = "", kind: str = "llama", sinks: int = 64) -> Engine:
        loaded = load_tiny(kind)
        roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
        storing = Storing(pair(seal), pair("quanto2"), sinks)
        limits = Limits(None, GIB, RUNGS, storing, GIB)
        place = DiskPlace(KVFolder(tmp_path / "kv"), b"weights")
        least = layer_pairs(layers, len(loaded.spec.layers))
        return Engine(loaded, FakeProbe([roomy]), limits, place=place, least=least)

    return make


def stored(engine: Engine) -> dict[tuple[int, ...], set[str]]:
    """Layers of each group, and the pairs that their blocks lie in beyond the sinks."""
    found: dict[tuple[int, ...], set[str]] = {}
    for block in engine.pool.index.all():
        if block.depth:
            layers = engine.pool.geometries[block.group].layers
            found.setdefault(layers, set()).add(str(block.pair))
    return found


def test_each_layer_lies_in_the_better_of_both(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of("int6/int4", "0=int8, -1=fp/int2")
    done(list(engine.run(request(IDS))))
    assert stored(engine) == {
        (0,): {"int8/int8"}, (1, 2): {"int6/int4"}, (3,): {"fp/int4"},
    }  # fmt: skip
    held = engine.pool.slab_bytes - engine.pool.free_block_bytes
    assert held == engine.costs.blocks_bytes(engine.room.text.num_cached, 512)
    engine.pool.check_integrity(held)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_all_layers_as_computed_is_as_computed(engine_of: Callable[..., Engine], kind: str) -> None:
    """Split into groups and joined again, nothing of the answer changes."""
    plain = done(list(engine_of(kind=kind).run(request(IDS))))
    layers = "0--1=int8, 0=fp, 1--1=fp"
    split = engine_of("int4", layers, kind)
    found = done(list(split.run(request(IDS))))
    assert found.ids == plain.ids
    assert set().union(*stored(split).values()) == {"fp/fp"}


def test_storing_anew_stops_at_the_least(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of("fp", "1-2=int8/int6")
    done(list(engine.run(request(IDS))))
    for block in list(engine.pool.index.all()):
        engine.pool.requantize(block, pair("int4"))
    assert stored(engine) == {(0, 3): {"int4/int4"}, (1, 2): {"int8/int6"}}
    engine.pool.check_integrity()


def test_texts_on_disk_are_those_of_the_same_layers(engine_of: Callable[..., Engine]) -> None:
    """What was stored below a layer's least is not found, also where all layers have one."""

    def reused(*about: str) -> int:
        engine = engine_of(*about)
        found = done(list(engine.run(request(IDS))))
        engine.close()
        return found.figures.reused_tokens

    for about in (("int4",), ("int4", "0=int8"), ("int4", "0--1=int8")):
        assert reused(*about) == 0
        assert reused(*about) > 500


@pytest.mark.parametrize("seal", ["quanto4", "quanto4/int8", "quanto2"])
def test_a_text_in_the_library_s_formats(engine_of: Callable[..., Engine], seal: str) -> None:
    """Written, read, and back from disk as it was, byte by byte."""

    def held(engine: Engine) -> dict[tuple[bytes | None, int], tuple[str, bytes]]:
        blocks = [one for one in engine.pool.index.all() if one.depth]
        return {
            (one.key, one.group): (str(one.pair), one.memory.numpy().tobytes()) for one in blocks
        }

    engine = engine_of(seal)
    done(list(engine.run(request(IDS))))
    written = held(engine)
    assert {name for name, _ in written.values()} == {str(pair(seal))}
    engine.close()
    again = engine_of(seal)
    assert again.disk is not None
    assert again.disk.restore(IDS) is not None
    restored = held(again)
    assert len(restored) > 5
    assert restored.items() <= written.items()


@pytest.mark.parametrize(
    ("about", "why"),
    [(("int4",), None), (("quanto4",), "format"), (("int4", "-1=fp/fp8"), "format")],
)
def test_what_no_kernel_reads_is_said(
    engine_of: Callable[..., Engine], about: tuple[str, ...], why: str | None
) -> None:
    engine = engine_of(*about)
    floor = replace(engine.limits.storing, floor=pair(about[0]))
    engine.limits = replace(engine.limits, storing=floor)
    assert {row["why"] for row in engine.attention} == {why}


def test_threads_hold_from_the_next_answer_on(engine_of: Callable[..., Engine]) -> None:
    engine, before = engine_of(), torch.get_num_threads()
    try:
        for threads in (2, 1):
            engine.limits = replace(engine.limits, threads=threads)
            done(list(engine.run(request(IDS[:20]))))
            assert torch.get_num_threads() == threads
        settings = resolve(flags={"threads": 3})
        assert limits_for(settings, engine.loaded.device).threads == 3
        assert limits_for(resolve(), engine.loaded.device).threads == USUAL_THREADS
    finally:
        torch.set_num_threads(before)


def test_layers_that_the_model_lacks_are_said_before_it_is_loaded(tmp_path: Path) -> None:
    folder = tiny_folder("llama", tmp_path / "tiny")
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"")  # reading it would be another error
    settings = resolve(flags={"model": str(folder), "layer_formats": "3-4=int8"})
    with pytest.raises(SettingsError, match="3-4=int8"):
        open_engine(settings, tmp_path, silent, None)
