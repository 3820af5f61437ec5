"""Memory that runs out while a model is loaded: one sentence with what it needs, nothing that
stays, and the next loading is well.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvchat.engine.engine import Engine
from kvchat.engine.open import open_engine
from kvchat.errors import KVChatError, ModelError
from kvchat.models.load import load_model
from kvchat.models.progress import silent
from kvchat.models.weights import StoredTensor
from tests.chaos.test_release import tensors_bytes
from tests.engine.test_engine import done, random_ids, request
from tests.faults import SHAPES, Failing, RecordFaults, count_faults, failing_calls, other_error
from tests.starts import resolve
from tests.tiny import tiny_folder

CPU = torch.device("cpu")
SHORT = ("model_does_not_fit",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tiny_folder("llama", tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)
    load(made)  # imports are done
    gc.collect()
    gc.freeze()  # what is counted is what is made from now on
    yield made
    gc.unfreeze()


def load(folder: Path) -> None:
    load_model(str(folder), data_dir=folder.parent, device=CPU)


def test_each_tensor_may_find_no_room(folder: Path, record_property: RecordFaults) -> None:
    load(folder)
    baseline, survived = tensors_bytes(), 0
    while True:
        with failing_calls(StoredTensor, ("__getitem__",), survived + 1) as counts:
            why = why_not(folder)
        assert tensors_bytes() <= baseline, survived
        if not counts["failed"]:
            break
        assert why in SHORT, survived
        survived += 1
    assert survived > 10
    load(folder)
    count_faults(record_property, "tensor of a model that is loaded", survived)


def why_not(folder: Path) -> str | None:
    """The code of the sentence that loading ended with; None where it did not fail."""
    try:
        load(folder)
    except ModelError as error:
        return error.code
    return None


def test_calls_of_torch_may_fail_while_a_model_is_loaded(
    folder: Path, tmp_path: Path, record_property: RecordFaults
) -> None:
    """All the way to an engine; a few of the calls, since each is a loading of its own."""
    settings = resolve(flags={"model": str(folder), "headroom": "1MiB"})

    def open_it() -> Engine:
        return open_engine(settings, tmp_path, silent, None)

    with Failing(0, 0) as counted:
        open_it().close()
    baseline, survived = tensors_bytes(), 0
    for point in range(6):
        at = 1 + point * counted.calls // 6
        why = None
        with Failing(at) as failing:
            try:
                open_it().close()
            except KVChatError as error:
                why = error.code
        assert why in (None, "out_of_memory", *SHORT), at
        survived += failing.num_failed
        assert tensors_bytes() <= baseline, at
    engine_now = open_it()
    done(list(engine_now.run(request(random_ids(20), max_new_tokens=2))))
    engine_now.close()
    count_faults(record_property, "torch call while a model is loaded", survived)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_each_shape_is_told_from_a_broken_file(folder: Path, shape: int) -> None:
    right, calls = StoredTensor.__getitem__, iter(range(100))

    def broken(stored: StoredTensor, part: object) -> torch.Tensor:
        if next(calls) == 3:
            raise SHAPES[shape]()
        return right(stored, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredTensor, "__getitem__", broken)
        with pytest.raises(ModelError) as caught:
            load(folder)
    assert caught.value.code in SHORT, caught.value
    assert caught.value.remedy()
    assert caught.value.__cause__ is None


def test_what_is_no_lack_of_memory_is_not_told_as_one(folder: Path) -> None:
    def broken(*_: object) -> None:
        raise other_error()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredTensor, "__getitem__", broken)
        with pytest.raises(ModelError) as caught:
            load(folder)
    assert caught.value.code not in SHORT
