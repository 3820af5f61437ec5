"""Memory that runs out at any call of a turn: the n-th of torch's, the n-th of the pool's; a reader
that leaves at any event.

Once is undone and done again: the same tokens, drawn with the same random numbers. For ever ends
with what was written until then. Either way nothing stays behind, and the next question is
answered. What is no lack of memory is not tried again.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.arch.from_hf import spec_from_config
from kvchat.attention import hf_seam
from kvchat.attention.forward import Forward
from kvchat.attention.hf_seam import LibraryLayers
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Failed, Sampling, Took
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel
from kvchat.engine.sampling import Sampler
from kvchat.errors import ModelError
from kvchat.kvcache import sequence as sequence_module
from kvchat.kvcache.blocks import HotWindow
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.slabs import Place, PoolFull, Slabs
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.arch.models import config_json
from tests.engine.test_engine import random_ids, request
from tests.faults import (
    SHAPES,
    Failing,
    RecordFaults,
    count_faults,
    failing_calls,
    other_error,
)
from tests.memory.live import LivePeak
from tests.tiny import tiny_config, tiny_tokenizer

FIRST, SECOND = random_ids(70), random_ids(126)  # the second goes on from the first
SMALL = random_ids(6, 9)
HOT = Sampling(temperature=1.0, seed=5)
CONFIGS: dict[str, Callable[[], Any]] = {
    "full": lambda: tiny_config("llama", num_hidden_layers=2),
    "sliding": lambda: tiny_config(
        "gemma3",
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=40,
    ),
    "library": lambda: AutoConfig.for_model(
        "qwen3_next",
        vocab_size=len(tiny_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.2,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        decoder_sparse_step=1,
        layer_types=["linear_attention", "full_attention"],
    ),
    "latent": lambda: _config_of("latent", num_hidden_layers=2, initializer_range=0.2),
}


def _config_of(kind: str, **changes: Any) -> Any:
    asked = config_json(kind) | {"vocab_size": len(tiny_tokenizer())} | changes
    return AutoConfig.for_model(asked.pop("model_type"), **asked)


@pytest.fixture(scope="module")
def loaded_as() -> Iterator[Callable[[str], LoadedModel]]:
    found: dict[str, LoadedModel] = {}

    def load(kind: str) -> LoadedModel:
        if kind not in found:
            config = CONFIGS[kind]()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            hf_seam.register()
            model.set_attn_implementation(hf_seam.NAME)
            spec = spec_from_config(config, name=kind, dtype_bytes=4)
            found[kind] = LoadedModel(
                kind, model, tiny_tokenizer(), spec, torch.device("cpu"), torch.float32, 0,
                frozenset(), (), "",
            )  # fmt: skip
            gc.collect()
            gc.freeze()  # the guard collects after each failure: not the libraries each time
        return found[kind]

    with pytest.MonkeyPatch.context() as patch:
        # torch's own type for this cannot be made while calls are watched.
        patch.setattr("kvchat.attention.flash.causal_lower_right", lower_right)
        yield load
    gc.unfreeze()


def lower_right(num_new: int, num_total: int) -> torch.Tensor:
    return torch.ones(num_new, num_total, dtype=torch.bool).tril(num_total - num_new)


class Turn:
    """An engine with a first turn behind it, and the second one to be disturbed."""

    def __init__(self, loaded: LoadedModel) -> None:
        roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
        self.engine = Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, RUNGS))
        self.ask(FIRST, max_new_tokens=1)
        self.events: list[Event] = []

    def ask(self, ids: tuple[int, ...], **changes: Any) -> Event:
        changes = {"prefill_chunk": 64, "sampling": HOT} | changes
        self.events = list(self.engine.run(request(ids, **changes)))
        return self.events[-1]

    def second(self) -> Event:
        return self.ask(SECOND, max_new_tokens=3)

    def assert_nothing_stays(self) -> None:
        """A small question is answered; then all that is held can be dropped, to the last byte."""
        assert isinstance(self.ask(SMALL, max_new_tokens=1), Done)
        self.engine.close_text()
        self.engine.local.drop_kept()
        self.engine.pool.check_integrity(0)
        self.engine.pool.drop_idle(2**60)
        assert self.engine.pool.device_bytes == 0


def undisturbed(loaded: LoadedModel) -> tuple[tuple[int, ...], int]:
    """The right tokens, and the number of torch's calls."""
    turn = Turn(loaded)
    with Failing(0, 0) as counted:
        last = turn.second()
    assert isinstance(last, Done)
    assert len(last.ids) == 3
    assert counted.calls > 300
    return last.ids, counted.calls


@pytest.mark.parametrize(
    ("kind", "every"), [("full", 11), ("sliding", 31), ("library", 43), ("latent", 43)]
)
def test_a_call_may_fail_once(
    loaded_as: Callable[[str], LoadedModel], kind: str, every: int, record_property: RecordFaults
) -> None:
    survived = check_failing_once(loaded_as(kind), every)
    count_faults(record_property, f"torch call, {kind}", survived)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_any_call_may_fail_once(
    loaded_as: Callable[[str], LoadedModel], kind: str, record_property: RecordFaults
) -> None:
    survived = check_failing_once(loaded_as(kind), 1)
    count_faults(record_property, f"torch call, {kind}", survived)


def check_failing_once(loaded: LoadedModel, every: int) -> int:
    """Each in another shape of running out. Returns how many were survived."""
    ids, calls = undisturbed(loaded)
    survived = 0
    for at in range(1, calls + 1, every):
        turn = Turn(loaded)
        with Failing(at) as failing:
            last = turn.second()
        assert isinstance(last, Done), at
        assert last.ids == ids, at
        codes = [e.entry["code"] for e in turn.events if isinstance(e, Took)]
        # What closes a text may fail as well: then its newest tokens are not kept for reuse.
        assert codes in ([], ["retry"]), at
        survived += failing.num_failed
        turn.assert_nothing_stays()
    return survived


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_each_shape_of_running_out_is_survived_anywhere(
    loaded_as: Callable[[str], LoadedModel], shape: int
) -> None:
    """C04: in prefill, in decode, and while it is drawn."""
    loaded = loaded_as("full")
    ids, calls = undisturbed(loaded)
    for at in (20, calls // 2, calls - 20):
        turn = Turn(loaded)
        with Failing(at, error=SHAPES[shape]()):
            last = turn.second()
        assert isinstance(last, Done), at
        assert last.ids == ids, at
        assert [e.entry["code"] for e in turn.events if isinstance(e, Took)] == ["retry"]


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_no_lack_of_memory_fails_once_and_loses_nothing(
    loaded_as: Callable[[str], LoadedModel], kind: str
) -> None:
    loaded = loaded_as(kind)
    _, calls = undisturbed(loaded)
    for at in range(5, calls + 1, calls // 7):
        turn = Turn(loaded)
        with (
            Failing(at, error=other_error()) as failing,
            pytest.raises(RuntimeError, match="mismatch"),
        ):
            turn.second()
        assert failing.num_failed == 1
        turn.engine.close_text()
        assert [e for e in turn.events if isinstance(e, Took)] == []
        turn.assert_nothing_stays()


class Watched(LivePeak):
    """Knows all storages that are alive, and fails at a call like `Failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.at = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise SHAPES[self.at % len(SHAPES)]()
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_failed_step_leaves_no_storage_alive(
    loaded_as: Callable[[str], LoadedModel], kind: str
) -> None:
    """C03: when the step is to run again, what is alive is what was before it, and the pool's."""
    loaded = loaded_as(kind)
    _, calls = undisturbed(loaded)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        with Watched() as watched:
            turn = Turn(loaded)
            turn.engine.close_text()
            watched.at = watched.calls + int(part * calls)
            before, retries = watched.live_bytes - held_bytes(turn.engine), 0
            asked = request(SECOND, max_new_tokens=3, prefill_chunk=64, sampling=HOT)
            for event in turn.engine.run(asked):
                now = watched.live_bytes - held_bytes(turn.engine)
                if isinstance(event, Took):
                    assert now == before, part
                    retries += 1
                before = now
        assert retries == 1, part


def held_bytes(engine: Engine) -> int:
    """What the pool has, and the open text's lists of where its blocks lie."""
    text = engine.room.text
    lists = text.sequence._lists if text is not None else ()
    made = [one for group in lists for one in group._made.values()]
    tensors = (part for one in made for part in (one.addresses, one.positions, one.count))
    return engine.pool.device_bytes + sum(part.untyped_storage().nbytes() for part in tensors)


@pytest.mark.parametrize(
    ("kind", "every"), [("full", 17), ("sliding", 53), ("library", 61), ("latent", 61)]
)
def test_all_calls_may_fail_from_any_on(
    loaded_as: Callable[[str], LoadedModel], kind: str, every: int
) -> None:
    loaded = loaded_as(kind)
    ids, calls = undisturbed(loaded)
    for at in range(1, calls + 1, every):
        turn = Turn(loaded)
        with Failing(at, 10**9):
            last = turn.second()
        assert isinstance(last, Failed), at
        assert last.error.code == "out_of_memory"
        assert last.error.__traceback__ is None
        assert last.ids == ids[: len(last.ids)], at
        turn.assert_nothing_stays()


OWN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "hot windows": (Pool, ("new_hot",)),
    "slabs": (Slabs, ("_grown",)),
    "blocks": (sequence_module, ("copy_tokens", "write_block")),
    "library caches": (LibraryLayers, ("save",)),
    "workspaces": (Forward, ("_room", "scratch")),
    "logits": (LocalModel, ("_forward",)),
    "sampler": (Sampler, ("draw", "save", "restore")),
}


@pytest.mark.parametrize("what", OWN)
@pytest.mark.parametrize("kind", ["full", "sliding", "library"])
def test_our_own_calls_may_fail_once(
    loaded_as: Callable[[str], LoadedModel], kind: str, what: str, record_property: RecordFaults
) -> None:
    """Each call that takes memory for ourselves; in a turn that finds nothing to reuse."""
    loaded, (owner, names) = loaded_as(kind), OWN[what]
    if what == "library caches" and kind != "library":
        return
    expected, survived, at = emptied(loaded).second(), 0, 0
    assert isinstance(expected, Done)
    while survived == at:
        at += 1
        turn = emptied(loaded)
        with failing_calls(owner, names, at) as counts:
            last = turn.second()
        survived += counts["failed"]
        assert isinstance(last, Done), at
        assert last.ids == expected.ids, at
        codes = [e.entry["code"] for e in turn.events if isinstance(e, Took)]
        assert codes in ([], ["retry"]), at
        turn.assert_nothing_stays()
    assert survived
    count_faults(record_property, f"own call: {what}", survived)


def emptied(loaded: LoadedModel) -> Turn:
    """What is idle has gone, so that even blocks are made anew in the turn."""
    turn = Turn(loaded)
    turn.engine.close_text()
    turn.engine.local.drop_kept()
    turn.engine.pool.drop_idle(2**60)
    return turn


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_the_pool_may_be_full_at_any_call(
    loaded_as: Callable[[str], LoadedModel], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = loaded_as(kind)
    ids, _ = undisturbed(loaded)
    calls, full_at = 0, 0

    def may_be_full(for_hot: bool) -> None:
        nonlocal calls
        calls += 1
        if calls == full_at:
            raise PoolFull(1000, for_hot=for_hot)

    def new_hot(pool: Pool, group: int, num_tokens: int) -> HotWindow:
        may_be_full(for_hot=True)
        return right_hot(pool, group, num_tokens)

    def take(slabs: Slabs, num_bytes: int, *others: Any) -> Place:
        may_be_full(for_hot=False)
        return right_take(slabs, num_bytes, *others)

    right_hot, right_take = Pool.new_hot, Slabs.take
    monkeypatch.setattr(Pool, "new_hot", new_hot)
    monkeypatch.setattr(Slabs, "take", take)
    while calls >= full_at:
        turn = emptied(loaded)
        calls, full_at = 0, full_at + 1
        last = turn.second()
        if isinstance(last, Done):
            assert last.ids == ids
        else:
            assert isinstance(last, Failed)
            assert last.ids == ids[: len(last.ids)]
        turn.assert_nothing_stays()
    assert full_at > 3


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_reader_may_leave_at_any_event(
    loaded_as: Callable[[str], LoadedModel], kind: str
) -> None:
    """The generator is closed, or an error is thrown into it, after each of its events."""
    loaded = loaded_as(kind)
    turn = Turn(loaded)
    turn.engine._clock = lambda: 0.0  # frames come by time: on a slow machine one more
    turn.second()
    for count in range(len(turn.events)):
        for leave in ("close", "throw"):
            turn = Turn(loaded)
            turn.engine._clock = lambda: 0.0
            events = turn.engine.run(request(SECOND, max_new_tokens=3, prefill_chunk=64))
            for _ in range(count):
                next(events)
            if leave == "close":
                events.close()  # type: ignore[attr-defined]
            else:
                with pytest.raises(ZeroDivisionError):
                    events.throw(ZeroDivisionError())  # type: ignore[attr-defined]
            turn.assert_nothing_stays()


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_error_keeps_no_tensor_alive(
    loaded_as: Callable[[str], LoadedModel], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C03: who keeps the error of a reply keeps nothing of the frames it came through."""
    turn = Turn(loaded_as(kind))
    mlp = turn.engine.loaded.model.model.layers[1].mlp
    seen: list[Any] = []

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(hidden))
        raise ModelError("model_own_mask")

    monkeypatch.setattr(mlp, "forward", broken)
    last = turn.second()
    assert isinstance(last, Failed)
    assert last.error.code == "model_own_mask"
    gc.collect()
    assert seen
    assert all(one() is None for one in seen)
