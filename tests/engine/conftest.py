"""Engines over tiny random models, loaded as people load theirs: from a folder."""

from collections.abc import Callable
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

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def load_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    loaded: dict[str, LoadedModel] = {}

    def load(kind: str) -> LoadedModel:
        if kind not in loaded:
            folder: Path = tmp_path_factory.mktemp(kind) / kind
            loaded[kind] = load_model(
                str(tiny_folder(kind, folder)), data_dir=folder.parent, device=torch.device("cpu")
            )
        return loaded[kind]

    return load


@pytest.fixture
def make_engine(load_tiny: Callable[[str], LoadedModel]) -> MakeEngine:
    def make(
        kind: str = "llama", budget: int | None = None, rungs: tuple[str, ...] = RUNGS
    ) -> Engine:
        roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
        return Engine(load_tiny(kind), FakeProbe([roomy]), Limits(budget, GIB, rungs))

    return make
