"""A model that was never measured: what it passes in is found out while nothing is asked, and the
running program goes by it.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from kvchat import cli
from kvchat.chat.conversations import Conversations
from kvchat.engine.fidelity import PairReader
from kvchat.errors import SettingsError
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import STEPS
from kvchat.ui.forms import form
from kvchat.wording import LANGUAGES, Language, table
from tests.starts import resolve
from tests.tiny import key_of, tiny_folder

NAMES = [str(pair) for pair in STEPS]
Open = Callable[..., Conversations]


def shown(formats: dict[str, Any]) -> tuple[list[str], str]:
    return formats["offered"], formats["stage"]


@pytest.fixture
def opened(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Starts on a folder of a model; again after a close, on the same data folder."""
    monkeypatch.setattr("kvchat.engine.worker.IDLE_INTERVAL_S", 0.02)
    running: list[Conversations] = []

    def start(model: Path, **flags: object) -> Conversations:
        while running:
            running.pop().close()
        usual = {"model": str(model), "temperature": 0, "max_new_tokens": 8, "headroom": 0}
        running.append(Conversations(resolve(flags=usual | flags), data_dir))
        running[-1].wait_ready(120)
        return running[-1]

    yield start
    while running:
        running.pop().close()


def measured(conversations: Conversations) -> Conversations:
    waiting = threading.Event()
    for _ in range(6000):
        if conversations.status()["formats"]["stage"] == "done":
            return conversations
        waiting.wait(0.01)
    raise AssertionError("not measured in a minute")


def offered(conversations: Conversations) -> list[str]:
    found: list[str] = conversations.status()["formats"]["offered"]
    engine = conversations._worker.engine
    assert engine is not None
    assert [str(pair) for pair in engine.costs.lower] == found, "the planner goes by it"
    return found


def choices(conversations: Conversations) -> dict[str, dict[str, Any]]:
    status = conversations.status()["formats"]["stage"]
    groups = form(conversations.settings, "en", conversations.verdicts(), status)["groups"]
    entries = {entry["name"]: entry for group in groups for entry in group["fields"]}
    return {one["value"]: one for one in entries["seal_format"]["choices"]}


def test_found_out_once_and_used_at_once(
    opened: Open, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("gemma3", tmp_path / "tiny")
    conversations = measured(opened(folder, floor_format="int4"))
    assert offered(conversations) == NAMES
    kept = json.loads((data_dir / "verdicts.json").read_text())["models"][key_of(folder)]
    assert list(kept) == NAMES
    assert all(row["text"] == "wording.en" and row["num_scored"] == 512 for row in kept.values())
    found = choices(conversations)
    steps = {value for value in found if str(FormatPair.parse(value)) in NAMES}
    assert len(steps) == len(NAMES)
    assert not any("not measured" in found[value]["label"] for value in steps)
    monkeypatch.setattr(PairReader, "read", lambda *_: 1 / 0)
    again = opened(folder, floor_format="int8")
    assert shown(again.status()["formats"]) == (NAMES[:1], "done")
    other = opened(tiny_folder("gemma3", tmp_path / "other" / "tiny", seed=1))
    assert other.status()["formats"]["offered"] == [], "a folder of that name is another model"


@pytest.fixture
def outlying(tmp_path: Path) -> Path:
    """C08: keys of which two values, that are rotated together, are 32 times larger."""
    folder = tiny_folder("llama", tmp_path / "tiny")
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    for name in weights:
        if "k_proj" in name or "q_proj" in name:
            weights[name][3::8] *= 32 if "k_proj" in name else 1 / 32
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def test_what_a_model_fails_is_closed_and_refused_and_said(opened: Open, outlying: Path) -> None:
    """Whoever chose it before it was known gets his text as computed from then on, and is told."""
    conversations = measured(opened(outlying, seal_format="int8"))
    assert offered(conversations) == []
    assert conversations.status()["notices"][-1:] == ["notice.format_failed"]
    found = choices(conversations)
    opened_ones = {value for value, one in found.items() if not one["closed"]}
    assert "fp" in opened_ones
    assert not {str(FormatPair.parse(value)) for value in opened_ones} & set(NAMES)
    assert all("not measured" in found[value]["label"] for value in opened_ones - {"fp"})
    with pytest.raises(SettingsError, match="int4 is not offered for tiny"):
        conversations.apply({"seal_format": "int4"})
    chat = conversations.new_chat()
    words = "What does the memory of this chat hold, and why? " * 12
    live = conversations.ask(chat, words)
    assert live.wait_ended(60)
    assert live.error is None
    (told,) = conversations.ledger_since(chat, 0)
    assert (told["code"], told["reason"]) == ("seal_as_computed", "measured")
    assert told["arguments"]["formats"] == "int8/int8"
    (turn,) = conversations.frame(chat)["turns"]
    assert set(turn["formats"]) == {"fp/fp"}
    conversations.apply({"allow_unproven": True, "seal_format": "int8"})
    assert offered(conversations) == NAMES[:2]  # down to the usual floor
    assert not any(one["closed"] for one in choices(conversations).values())


def test_before_it_is_known_nothing_is_stepped_down_to(
    opened: Open, outlying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format that nobody measured may be chosen, but says so; the planner leaves it alone."""
    here, go_on = threading.Event(), threading.Event()
    right = PairReader.read

    def read(reader: PairReader, *about: Any) -> Any:
        here.set()
        go_on.wait(60)
        return right(reader, *about)

    monkeypatch.setattr(PairReader, "read", read)
    conversations = opened(outlying)
    assert here.wait(60)
    try:
        assert shown(conversations.status()["formats"]) == ([], "measuring")
        assert conversations.status()["notices"] == []
        conversations.apply({"seal_format": "int8"})
        assert conversations.status()["notices"] == ["notice.format_unmeasured"]
        found = choices(conversations)["int8"]
        assert found["label"] == "INT8 (not measured on this model)"
        assert found["note"] == "Being measured on this model just now."
    finally:
        go_on.set()
    measured(conversations)
    assert conversations.status()["notices"] == ["notice.format_failed"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_who_chooses_what_nobody_measured_is_told_on_the_command_line(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], lang: Language
) -> None:
    folder = str(tiny_folder("llama", tmp_path / "tiny"))
    words = ["ask", "hello", "--model", folder, "--max-new-tokens", "2", "--lang", lang]
    for seal, num in (("int8", 1), ("fp", 0)):
        assert cli.main([*words, "--set", f"seal_format={seal}"]) == 0
        said = capsys.readouterr().err
        assert said.count(table()["notice.format_unmeasured"][lang]) == num
