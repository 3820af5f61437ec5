"""Another model while the program runs: chats go on, memory comes back, what fails leaves a way."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.errors import KVChatError, ModelError, OutOfMemory, SettingsError
from kvchat.models.progress import LoadProgress
from kvchat.settings_sources import Saved, Sources
from tests.chat.conftest import Start
from tests.tiny import tiny_folder

PATIENCE_S = 60
Loads = Callable[..., Any]


@pytest.fixture(scope="session")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("qwen3", tmp_path_factory.mktemp("others") / "other", seed=3)


def settled(talks: Conversations) -> None:
    assert talks.loading.worker.is_loaded(PATIENCE_S)


def weights(talks: Conversations) -> int:
    """Once they were measured, which is a moment after the model is ready."""
    until = time.monotonic() + PATIENCE_S
    while not talks.frame()["weights_bytes"] and time.monotonic() < until:
        time.sleep(0.02)
    return int(talks.frame()["weights_bytes"])


def answer(talks: Conversations, chat: str, text: str) -> str:
    live = talks.ask(chat, text)
    live.wait_ended(PATIENCE_S)
    assert live.status == "done", live.error
    return live.text


def test_the_chat_goes_on_with_the_other_model(
    start: Start, other_path: Path, tiny_path: Path
) -> None:
    talks = start()
    chat = talks.new_chat()
    answer(talks, chat, "What is a fox?")
    before = talks.frame(chat)["weights_bytes"]
    talks.loading.change({"model": str(other_path)})
    settled(talks)
    assert talks.status()["model"] == "other"
    answer(talks, chat, "And a dog?")
    assert [one.text for one in talks.history(chat)] == ["What is a fox?", "And a dog?"]
    frame = talks.frame(chat)
    assert frame["weights_bytes"] not in (0, before)
    assert len(frame["turns"]) == 2
    talks.loading.change({"model": str(tiny_path)})
    settled(talks)
    assert answer(talks, chat, "And a cat?") is not None


def test_what_was_loaded_is_loaded_at_the_next_start(
    start: Start, data_dir: Path, other_path: Path
) -> None:
    talks = start()
    talks.loading.change({"model": str(other_path), "weights": "int8", "dtype": "bf16"})
    settled(talks)
    kept = Saved.read(data_dir / "settings.toml")
    assert kept.general == {"model": str(other_path)}
    assert kept.models == {str(other_path): {"weights": "int8", "dtype": "bf16"}}
    settings = Sources.of_start(None, data_dir / "settings.toml", {}).settings()
    assert (settings.model, settings.weights, settings.dtype) == (str(other_path), "int8", "bf16")
    assert talks.held.pending() == []
    assert talks.held.source("weights") == "model"


def test_an_answer_under_way_is_stopped_and_kept(start: Start, other_path: Path) -> None:
    talks = start(max_new_tokens=1500)
    engine = talks.loading.engine
    assert engine is not None
    engine.loaded.eos_token_ids = frozenset()
    chat = talks.new_chat()
    live = talks.ask(chat, "Tell me a long story.")
    while not live.text:
        time.sleep(0.01)
    talks.loading.change({"model": str(other_path)})
    assert live.status == "stopped"
    settled(talks)
    (turn,) = talks.history(chat)
    assert turn.reply == live.text
    assert turn.finish_reason == "cancelled"


def test_who_asks_meanwhile_is_answered_by_the_new_model(
    start: Start, other_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = start()
    gate = held_back(monkeypatch, other_path)
    talks.loading.change({"model": str(other_path)})
    chat = talks.new_chat()
    live = talks.ask(chat, "Who are you?")
    time.sleep(0.2)
    assert live.status == "queued"
    gate.set()
    live.wait_ended(PATIENCE_S)
    assert live.status == "done"
    assert talks.status()["model"] == "other"


def held_back(monkeypatch: pytest.MonkeyPatch, path: Path) -> threading.Event:
    """Loading of that folder waits for the gate, and may be called off as it waits."""
    from kvchat.engine import open as opening

    gate, load = threading.Event(), opening.load_model

    def waiting(ref: str, **about: Any) -> Any:
        if ref == str(path):
            about["progress"](LoadProgress("weights", 3, 9))
            while not gate.wait(0.02):
                if about["cancel"].is_set():
                    raise ModelError("load_cancelled")
        return load(ref, **about)

    monkeypatch.setattr(opening, "load_model", waiting)
    return gate


def test_called_off_in_the_middle_the_old_model_is_there_again(
    start: Start, data_dir: Path, other_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = start(top_k=5)
    held_back(monkeypatch, other_path)
    before = talks.settings
    talks.loading.change({"model": str(other_path), "weights": "int8"})
    while (talks.status()["load"]["of"]) != 9:
        time.sleep(0.01)
    assert talks.status()["stage"] == "loading"
    talks.loading.cancel()
    settled(talks)
    assert talks.status()["model"] == "tiny"
    assert talks.status()["refused"]["code"] == "load_cancelled"
    assert talks.settings == before
    assert not (data_dir / "settings.toml").exists(), "it did not run, so it is not kept"
    assert answer(talks, talks.new_chat(), "Hello?") is not None


def test_a_model_that_breaks_while_it_is_loaded_leaves_the_old_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = start()
    torn = tiny_folder("llama", tmp_path / "torn", seed=5)
    file = next(torn.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    talks.loading.change({"model": str(torn)})
    settled(talks)
    status = talks.status()
    assert (status["model"], status["stage"]) == ("tiny", "ready")
    assert "torn" in status["refused"]["message"]
    assert answer(talks, talks.new_chat(), "Hello?") is not None


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"model": "/nowhere"}, ModelError), ({"model": "Qwen3-8B"}, ModelError),
     ({"model": ""}, ModelError), ({"dtype": "fp4"}, SettingsError)],
)  # fmt: skip
def test_what_cannot_be_loaded_is_refused_before_anything_is_let_go_of(
    start: Start, changes: dict[str, str], error: type[KVChatError]
) -> None:
    talks = start()
    engine, before = talks.loading.engine, talks.settings
    with pytest.raises(error) as found:
        talks.loading.change(changes)
    assert found.value.remedy("ko")
    assert talks.loading.engine is engine
    assert talks.settings == before
    assert talks.loading.worker.is_loaded(0)


def test_what_cannot_fit_is_refused_with_numbers_and_what_would(
    start: Start, tmp_path: Path
) -> None:
    large = tiny_folder("llama", tmp_path / "large", hidden_size=256, intermediate_size=1024)
    talks = start(memory_budget="2 MiB")
    engine = talks.loading.engine
    with pytest.raises(OutOfMemory, match=r"weights alone take") as found:
        talks.loading.change({"model": str(large)})
    assert "2.0 MiB" in found.value.message("ko")
    assert talks.loading.engine is engine


def test_unloaded_it_gives_all_back_and_says_so_to_who_asks(start: Start, tiny_path: Path) -> None:
    talks = start()
    chat = talks.new_chat()
    answer(talks, chat, "What is a fox?")
    engine: Any = talks.loading.engine
    gone = [weakref.ref(one) for one in (engine, engine.pool, engine.loaded.model, engine.room)]
    del engine
    talks.loading.unload()
    settled(talks)
    until = time.monotonic() + 10
    while any(one() is not None for one in gone) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.05)
    assert [one() for one in gone] == [None] * 4
    assert talks.status()["stage"] == "unloaded"
    assert talks.frame(chat)["weights_bytes"] == 0
    live = talks.ask(chat, "And a dog?")
    live.wait_ended(PATIENCE_S)
    assert live.error is not None
    assert live.error.code == "model_unloaded"
    talks.loading.change({"model": str(tiny_path)})
    settled(talks)
    assert answer(talks, chat, "And a dog?") is not None
    assert len(talks.history(chat)) == 3


def test_a_reload_brings_what_waited_for_it(start: Start) -> None:
    talks = start()
    before = weights(talks)
    talks.apply({"dtype": "bf16", "top_k": 4})
    talks.loading.reload()
    settled(talks)
    assert talks.held.pending() == []
    assert talks.settings.top_k == 4
    assert weights(talks) < 0.6 * before


def test_a_reload_that_fails_leaves_the_model_as_it_was(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvchat.engine import open as opening

    talks, load = start(), opening.load_model

    def fails(ref: str, **about: Any) -> Any:
        if about["dtype"] == "bf16":
            raise ModelError("model_load_failed", why="no such thing")
        return load(ref, **about)

    monkeypatch.setattr(opening, "load_model", fails)
    talks.apply({"dtype": "bf16"})
    talks.loading.reload()
    settled(talks)
    assert talks.status()["stage"] == "ready"
    assert talks.status()["refused"]["code"] == "model_load_failed"
    assert talks.held.pending() == ["dtype"], "it still waits, and that is said"


def test_changed_again_and_again_the_last_one_runs(
    start: Start, other_path: Path, tiny_path: Path
) -> None:
    talks = start()
    for path in (other_path, tiny_path, other_path, tiny_path, other_path):
        talks.loading.change({"model": str(path)})
    settled(talks)
    assert talks.status()["model"] == "other"
    assert answer(talks, talks.new_chat(), "Hello?") is not None
    assert sum(one.name == "kvchat-worker" for one in threading.enumerate()) == 1


def test_a_setting_changed_while_another_model_is_loaded_stays_whichever_runs_then(
    start: Start, other_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = start()
    held_back(monkeypatch, other_path)
    talks.loading.change({"model": str(other_path)})
    while (talks.status()["load"]["of"]) != 9:
        time.sleep(0.01)
    talks.apply({"top_k": 9})
    talks.loading.cancel()
    settled(talks)
    assert talks.status()["model"] == "tiny"
    assert talks.settings.top_k == 9
    assert talks.settings.model == str(talks.held.running.model)
