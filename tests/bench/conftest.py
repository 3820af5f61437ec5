"""An engine over a tiny random model, and a long enough text of words by chance."""

import random
from pathlib import Path

import pytest
import torch

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.limits import Limits
from kvchat.models.load import LoadedModel, load_model
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.tiny import tiny_folder


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("bench") / "tiny-llama"
    return load_model(
        str(tiny_folder("llama", folder)), data_dir=folder.parent, device=torch.device("cpu")
    )


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> Engine:
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    return Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, RUNGS))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("text") / "words.txt"
    chance = random.Random(3)
    text = "the memory of a chat holds what was read and 메모리는 어디에 있나요 question answer"
    words = text.split()
    file.write_text(" ".join(chance.choice(words) for _ in range(900)), encoding="utf-8")
    return file
