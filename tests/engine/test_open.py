"""Opening an engine beside other programs: what is free at that moment counts, not at another."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.device.memory import DeviceMemory
from kvchat.device.monitor import Monitor
from kvchat.engine.engine import Engine
from kvchat.engine.open import open_engine
from kvchat.errors import ModelError, OutOfMemory
from kvchat.models.fitting import least_bytes, spec_of_folder
from kvchat.models.progress import silent
from kvchat.models.weights import StoredTensor, predicted_weight_bytes
from kvchat.units import GIB
from tests.device.liars import LIES, Liar
from tests.engine.test_engine import done, random_ids, request
from tests.starts import resolve
from tests.tiny import tiny_folder

CPU = torch.device("cpu")
ROOMY = DeviceMemory("cpu", 16 * GIB, 12 * GIB, 0, 0, 0, 0.0, shared=True)
Open = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 1024}
    return tiny_folder("llama", tmp_path_factory.mktemp("models") / "tiny", **sizes)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Liar:
    made = Liar(ROOMY)
    monkeypatch.setattr("kvchat.engine.open.monitor_for", lambda _: Monitor(made))
    return made


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the tensors that were read, not only foretold."""
    found: list[int] = []
    right = StoredTensor.__getitem__

    def read(self: StoredTensor, part: Any) -> torch.Tensor:
        tensor = right(self, part)
        if tensor.device.type != "meta":
            found.append(self.nbytes)
        return tensor

    monkeypatch.setattr(StoredTensor, "__getitem__", read)
    return found


def opened(folder: Path, data_dir: Path, **flags: Any) -> Engine:
    settings = resolve(flags={"model": str(folder), "headroom": 0} | flags)
    return open_engine(settings, data_dir, silent, None)


def needed(folder: Path) -> int:
    spec = spec_of_folder(folder, torch.float32, predicted_weight_bytes(folder, torch.float32))
    return least_bytes(spec, 4, CPU)


def test_what_others_take_before_it_is_loaded_counts(
    folder: Path, tmp_path: Path, device: Liar, read_bytes: list[int]
) -> None:
    """C25: enough was free in all, another program takes it, and gives it back."""
    device.true = replace(ROOMY, free=needed(folder) - 1, other_processes=4 * GIB)
    with pytest.raises(OutOfMemory) as caught:
        opened(folder, tmp_path)
    assert caught.value.code == "budget_fits_smaller"
    assert "--dtype bf16" in caught.value.remedy("ko")
    assert read_bytes == []
    device.true = ROOMY
    engine = opened(folder, tmp_path)
    done(list(engine.run(request(random_ids(40)))))
    engine.close()


@pytest.mark.parametrize("headroom", ["13GiB", "256GiB"])
def test_a_headroom_beyond_what_is_free_is_refused_before_anything_is_read(
    folder: Path, tmp_path: Path, device: Liar, read_bytes: list[int], headroom: str
) -> None:
    with pytest.raises(OutOfMemory) as caught:
        opened(folder, tmp_path, headroom=headroom)
    assert "headroom" in caught.value.remedy()
    assert "\n" not in caught.value.line("ko")
    assert read_bytes == []


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_device_that_never_tells_its_memory_is_one_sentence(
    folder: Path, tmp_path: Path, device: Liar, read_bytes: list[int], lie: Any
) -> None:
    device.lie = lie
    with pytest.raises(ModelError) as caught:
        opened(folder, tmp_path)
    assert caught.value.code == "device_unreadable"
    assert read_bytes == []
