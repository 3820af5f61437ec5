"""A text goes on from the disk: after a restart, in a second chat, and never from a file that is
not what was written.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.chat.conversations import Conversations
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Took
from kvchat.engine.limits import Limits
from kvchat.engine.open import open_engine
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.disk import CHATS, KVFolder
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.tiers import DiskPlace
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from kvchat.models.load import LoadedModel
from kvchat.models.progress import silent
from kvchat.settings import RUNGS
from kvchat.units import GIB, MIB
from tests.arch.models import config_json
from tests.engine.test_engine import done, random_ids, request
from tests.starts import resolve
from tests.tiny import tiny_folder, tiny_tokenizer

Load = Callable[[str], LoadedModel]
Open = Callable[..., Engine]
INT8, INT6_INT4 = FormatPair.parse("int8"), FormatPair.parse("int6/int4")
IDS = random_ids(300, 21)


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def open_on(load_tiny: Load, kv: Path) -> Open:
    """A new engine on the same folder, as after a restart."""

    def make(
        kind: str = "llama",
        disk_format: FormatPair = FP,
        storing: Storing | None = None,
        quota: int = GIB,
        budget: int | None = None,
        weights: bytes = b"weights",
    ) -> Engine:
        roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
        limits = Limits(budget, GIB, RUNGS, storing or Storing(), quota, disk_format)
        place = DiskPlace(KVFolder(kv), weights)
        return Engine(load_tiny(kind), FakeProbe([roomy]), limits, place=place)

    return make


def answer(engine: Engine, ids: tuple[int, ...], chat: str = "c1") -> tuple[Done, list[str]]:
    """The reply, and the codes of what was taken for it."""
    events: list[Event] = list(engine.run(request(ids, chat=chat)))
    return done(events), [event.entry["code"] for event in events if isinstance(event, Took)]


def answer_and_stop(engine: Engine, ids: tuple[int, ...], chat: str = "c1") -> Done:
    found, _ = answer(engine, ids, chat)
    engine.close()
    return found


def files(kv: Path) -> list[Path]:
    return sorted(kv.glob("*/*.safetensors"))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_a_restart_goes_on_where_the_text_stopped(open_on: Open, kind: str) -> None:
    """All but the last sampled id, which was never fed, is there; the tokens are those of an engine
    that was never stopped.
    """
    first = answer_and_stop(open_on(kind), IDS)
    longer = (*IDS, *first.ids, *random_ids(30, 2))
    engine = open_on(kind)
    again, took = answer(engine, longer)
    assert again.figures.reused_tokens == len(IDS) + len(first.ids) - 1
    assert took == ["restore"]
    assert again.ids == answer(open_on(kind, quota=0), longer)[0].ids
    engine.close_text()
    engine.pool.check_integrity(0)


@pytest.mark.parametrize("sinks", [0, 64, 100])
@pytest.mark.parametrize("seal", [FP, INT6_INT4])
def test_what_is_kept_in_less_goes_on_over_what_was_kept(
    open_on: Open, seal: FormatPair, sinks: int
) -> None:
    """Stored as int8, or lower where it was lower already; the first tokens as computed. A text
    whose floor is `fp` does not reuse that.
    """
    storing = Storing(seal, INT6_INT4, sinks)
    ids = random_ids(700, 22)
    first = answer_and_stop(open_on("llama", INT8, storing), ids)
    longer = (*ids, *first.ids, *random_ids(9, 2))
    told = open_on("llama", INT8, storing)
    assert told.disk is not None
    restored = told.disk.restore(longer)
    assert restored is not None
    assert {str(pair) for pair in restored.formats} == {"fp/fp", str(INT8 if seal == FP else seal)}
    assert restored.num_bytes == told.pool.idle_bytes
    engine = open_on("llama", INT8, storing)
    again, took = answer(engine, longer)
    assert took == ["restore"]
    assert again.figures.reused_tokens == len(ids) + len(first.ids) - 1
    expected = {"fp/fp", str(INT8 if seal == FP else seal)}
    found = {str(block.pair) for block in engine.pool.index.all() if block.depth < 5}
    assert found == (expected if sinks else expected - {"fp/fp"})
    strict, _ = answer(open_on("llama", INT8, Storing(FP, FP)), longer)
    assert strict.figures.reused_tokens == -(-sinks // BLOCK_TOKENS) * BLOCK_TOKENS


def test_a_second_chat_about_the_same_document(open_on: Open) -> None:
    document, question = random_ids(260, 23), random_ids(40, 24)
    answer_and_stop(open_on(), (*document, *random_ids(40, 25)), "c1")
    found, took = answer(open_on(), (*document, *question), "c2")
    assert took == ["restore"]
    assert found.figures.reused_tokens == len(document) // BLOCK_TOKENS * BLOCK_TOKENS
    assert found.ids == answer(open_on(quota=0), (*document, *question))[0].ids


def test_a_window_loads_only_what_it_sees(open_on: Open) -> None:
    """gemma3's sliding layers see 48 tokens: their older blocks stay on the disk."""
    answer_and_stop(open_on("gemma3"), IDS)
    engine = open_on("gemma3")
    answer(engine, (*IDS, 7, 8, 9))
    sliding = [g for g, one in enumerate(engine.pool.geometries) if one.window is not None]
    loaded = [b for b in engine.pool.index.all() if b.group in sliding and b.depth < 3]
    assert not loaded


def test_what_the_pool_has_is_not_loaded_again(open_on: Open) -> None:
    engine = open_on()
    first, _ = answer(engine, IDS)
    while engine.save():
        pass
    again, took = answer(engine, (*IDS, *first.ids, 5))
    assert took == []
    assert again.figures.reused_tokens == len(IDS) + len(first.ids) - 1


def test_without_room_it_loads_what_fits_and_takes_no_measure(open_on: Open) -> None:
    answer_and_stop(open_on(), IDS)
    engine = open_on()
    fixed = engine.costs.needed_bytes(0, 64)
    budget = fixed + 200 * sum(one.bytes_per_token for one in engine.pool.geometries)
    tight = open_on(budget=budget)
    tight.pool.limit_bytes = 3 * tight.pool.geometries[0].block_bytes
    assert tight.disk is not None
    found = tight.disk.restore(IDS)
    assert found is not None
    assert found.num_tokens == 3 * BLOCK_TOKENS
    assert tight.pool.device_bytes <= tight.pool.limit_bytes
    tight.pool.check_integrity(0)


def test_what_other_texts_keep_makes_way_for_what_is_on_disk(open_on: Open) -> None:
    """As it would for reading it again."""
    first = answer_and_stop(open_on(), IDS)
    longer = (*IDS, *first.ids, 7)
    engine = open_on(budget=open_on().costs.needed_bytes(len(longer) + 40, 512))
    answer(engine, random_ids(300, 77), "c2")
    engine.close_text()
    again, took = answer(engine, longer)
    assert {"drop_idle", "restore"} <= set(took)
    assert again.figures.reused_tokens >= len(IDS) - BLOCK_TOKENS
    assert again.ids == answer(open_on(quota=0), longer)[0].ids
    engine.close_text()
    engine.pool.check_integrity(0)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _flip_in_header(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b'\\"over\\": \\"fp/fp\\"', b'\\"over\\": \\"fp/f \\"', 1))


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [_flip, _flip_in_header, _truncate, _empty])
def test_a_damaged_file_is_removed_and_told_of(
    open_on: Open, kv: Path, damage: Callable[[Path], None]
) -> None:
    answer_and_stop(open_on(), IDS)
    run = max(files(kv), key=lambda one: one.stat().st_size)
    damage(run)
    engine = open_on()
    found, took = answer(engine, IDS)
    assert took[0] == "drop_file"
    assert took[1:] == (["restore"] if damage is _flip else [])  # the blocks before that byte
    assert found.figures.reused_tokens <= len(IDS) // 2
    assert not run.exists()
    assert found.ids == answer(open_on(quota=0), IDS)[0].ids


def test_all_damaged_files_of_a_text_are_found_at_once(
    open_on: Open, kv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks after the first gap are of no use yet, but their files are looked at all the same."""
    monkeypatch.setattr("kvchat.kvcache.tiers.PIECE_BYTES", 1)  # a file for each block
    first = answer_and_stop(open_on(), IDS)
    assert len(files(kv)) == (len(IDS) + len(first.ids) - 1) // BLOCK_TOKENS + 1
    damaged = [one for one in files(kv) if one.stat().st_size > 20_000][1:]
    for file in damaged:
        _flip(file)
    engine = open_on()
    longer = (*IDS, *first.ids, 5)
    _, took = answer(engine, longer)
    assert took.count("drop_file") == len(damaged) > 2
    assert not any(file.exists() for file in damaged)
    engine.close()
    again, took = answer(open_on(), longer)
    assert took == ["restore"]
    assert again.figures.reused_tokens >= len(longer) - BLOCK_TOKENS
    assert again.ids == answer(open_on(quota=0), longer)[0].ids


def test_a_file_under_another_name_is_not_used(open_on: Open, kv: Path) -> None:
    answer_and_stop(open_on(), IDS)
    run = max(files(kv), key=lambda one: one.stat().st_size)
    other = run.with_name("0" * 32 + ".safetensors")
    run.rename(other)
    chats = kv / CHATS
    chats.write_text(chats.read_text().replace(run.name, other.name))
    _, took = answer(open_on(), IDS)
    assert took == ["drop_file"]
    assert not other.exists()


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_files_of_another_model_are_not_used(open_on: Open, kv: Path, kind: str) -> None:
    """Another shape, or the same one with other weights: each has a folder of its own. A file that
    was put there from elsewhere is removed.
    """
    answer_and_stop(open_on(weights=b"old"), IDS)
    (run,) = [one for one in files(kv) if one.stat().st_size > 50_000]
    new = open_on(kind)
    _, took = answer(new, IDS)
    assert took == []
    new.close()
    (folder,) = {one.parent for one in files(kv)} - {run.parent}
    foreign = folder / run.name
    foreign.write_bytes(run.read_bytes())
    chats = kv / CHATS
    chats.write_text(chats.read_text().replace("[", f'["{folder.name}/{run.name}", ', 1))
    engine = open_on(kind)
    _, took = answer(engine, random_ids(10, 26))
    assert took == ["drop_file"]
    assert not foreign.exists()
    assert run.exists()


def test_the_quota_holds_and_the_least_recently_used_go_first(open_on: Open, kv: Path) -> None:
    texts = [random_ids(200, seed) for seed in (31, 32, 33)]
    engine = open_on()
    for i, ids in enumerate(texts):
        answer(engine, ids, f"c{i}")
    engine.close()
    quota = sum(one.stat().st_size for one in files(kv)) - 1
    again = open_on(quota=quota)
    answer(again, (*texts[0], 5), "c0")  # used once more: now the second text is the oldest
    again.close()
    assert sum(one.stat().st_size for one in files(kv)) <= quota
    reused = [answer(open_on(), ids)[0].figures.reused_tokens for ids in texts]
    assert reused[1] < reused[0]
    assert reused[1] < reused[2]
    frame = open_on().frame()
    assert frame["kv"]["disk_bytes"] == sum(one.stat().st_size for one in files(kv))


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
def test_only_the_owner_may_read(open_on: Open, kv: Path) -> None:
    before = os.umask(0)
    try:
        answer_and_stop(open_on(), IDS)
    finally:
        os.umask(before)
    assert len(files(kv)) > 1
    assert {one.stat().st_mode & 0o777 for one in (*files(kv), kv / CHATS)} == {0o600}
    assert {one.stat().st_mode & 0o777 for one in (kv, files(kv)[0].parent)} == {0o700}


def test_a_deleted_chat_leaves_no_file_that_only_it_needed(open_on: Open, kv: Path) -> None:
    document = random_ids(200, 41)
    engine = open_on()
    answer(engine, (*document, *random_ids(100, 42)), "c1")
    while engine.save():
        pass
    answer(engine, (*document, *random_ids(100, 43)), "c2")
    engine.close()
    later = open_on()
    assert later.disk is not None
    later.disk.forget("c2")
    found, _ = answer(open_on(), (*document, *random_ids(100, 42)))
    assert found.figures.reused_tokens > len(document)
    later.disk.forget("c1")
    assert files(kv) == []
    gone, took = answer(open_on(), document)
    assert (gone.figures.reused_tokens, took) == (0, [])


def test_a_chat_deleted_before_it_was_written_is_not_written(open_on: Open, kv: Path) -> None:
    engine = open_on()
    answer(engine, IDS, "c1")
    assert engine.disk is not None
    engine.disk.forget("c1")
    engine.close()
    assert files(kv) == []
    assert "c1" not in (kv / CHATS).read_text() if (kv / CHATS).exists() else True


def test_a_full_disk_costs_one_line_in_the_log(
    open_on: Open, kv: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvchat.kvcache.tiers.write_file", full)
    engine = open_on()
    answer(engine, IDS)
    engine.close()
    assert [one.message for one in caplog.records].count(caplog.records[0].message) == 1
    assert "No space left" in caplog.text
    assert list(kv.glob("*/*")) == []
    monkeypatch.undo()
    assert answer(open_on(), IDS)[0].figures.reused_tokens == 0


def test_a_quota_of_nothing_writes_and_reads_nothing(open_on: Open, kv: Path) -> None:
    answer_and_stop(open_on(), IDS)
    there = files(kv)
    found, took = answer(open_on(quota=0), IDS)
    assert (found.figures.reused_tokens, took) == (0, [])
    off = open_on(quota=0)
    answer_and_stop(off, random_ids(200, 51))
    assert files(kv) == there


def test_blocks_are_safetensors_without_any_code(open_on: Open, kv: Path) -> None:
    answer_and_stop(open_on(), IDS)
    for file in files(kv):
        with safe_open(file, framework="pt") as content:
            names = set(content.keys()) - {"ids"}
            assert all(content.get_tensor(name).dtype == torch.uint8 for name in names)


_KILLED = """
import os, sys, threading
from pathlib import Path
import kvchat.kvcache.disk as disk
from kvchat.kvcache import kv_file, tiers
tiers.PIECE_BYTES = 1  # a file for each block

number = int(sys.argv[2])
written = 0
right = disk._sync
def sync(path):
    global written
    written += 1
    if written == number:
        print("now", flush=True)
        threading.Event().wait()
    right(path)
disk._sync = sync

import torch
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.limits import Limits
from kvchat.kvcache.tiers import DiskPlace
from kvchat.models.load import load_model
from tests.engine.test_disk import IDS, answer
loaded = load_model(sys.argv[3], data_dir=Path(sys.argv[1]), device=torch.device("cpu"))
roomy = DeviceMemory("cpu", 2**36, 2**35, 0, 0, 0, 0.0)
limits = Limits(None, 2**30, (), disk_quota=2**30)
place = DiskPlace(disk.KVFolder(Path(sys.argv[1])), b"weights")
engine = Engine(loaded, FakeProbe([roomy]), limits, place=place)
answer(engine, IDS)
engine.close()
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_killed_while_it_writes_it_leaves_whole_files_and_no_parts(
    open_on: Open, kv: Path, tmp_path: Path
) -> None:
    model = tiny_folder("llama", tmp_path / "llama")
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(kv), "5", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "now\n"
        program.send_signal(signal.SIGKILL)
    assert list(kv.glob("*/*.part"))
    engine = open_on()
    assert not list(kv.glob("*/*.part"))
    found, took = answer(engine, IDS)
    assert took == ["restore"]
    assert 0 < found.figures.reused_tokens < len(IDS)
    assert found.ids == answer(open_on(quota=0), IDS)[0].ids


def test_a_chat_goes_on_after_a_restart_and_is_forgotten_when_deleted(
    tmp_path: Path, data_dir: Path
) -> None:
    """As the program does it: the worker saves between answers, deleting removes the files."""
    model = tiny_folder("llama", tmp_path / "llama")
    flags = {"model": str(model), "max_new_tokens": "8", "headroom": str(MIB), "temperature": "0"}
    settings = resolve(flags=flags)
    text = "What does the memory of this chat hold, and why? " * 12

    def ask(conversations: Conversations, chat: str) -> int:
        conversations.wait_ready()
        live = conversations.ask(chat, text)
        assert live.wait_ended(60)
        assert live.figures is not None
        return int(live.figures["reused_tokens"])

    first = Conversations(settings, data_dir)
    chat = first.new_chat()
    assert ask(first, chat) == 0
    first.close()
    second = Conversations(settings, data_dir)
    assert ask(second, chat) > 100
    assert [row["code"] for row in second.ledger_since(chat, 0)] == ["restore"]
    second.delete(chat)
    second.close()
    assert files(data_dir / "kv") == []


def test_a_deleted_turn_is_in_no_file(tmp_path: Path, data_dir: Path) -> None:
    """Nor is it written after that; what is left of the chat is, with its next answer."""
    model = tiny_folder("llama", tmp_path / "llama")
    flags = {"model": str(model), "max_new_tokens": "8", "headroom": str(MIB), "temperature": "0"}
    secret = "The password of the safe is 4711 and it stands behind the door. " * 4
    hidden = " ".join(map(str, tiny_tokenizer().encode(secret)[4:40]))

    def is_written() -> bool:
        found = []
        for file in files(data_dir / "kv"):
            with safe_open(file, framework="pt") as content:
                found.append(content.get_tensor("ids").flatten().tolist())
        return any(hidden in " ".join(map(str, ids)) for ids in found)

    conversations = Conversations(resolve(flags=flags), data_dir)
    chat = conversations.new_chat()
    for question in ("What does this memory hold, and why? " * 6, secret, "And then? " * 20):
        assert conversations.ask(chat, question).wait_ended(60)
    until = time.monotonic() + 20
    while not is_written() and time.monotonic() < until:
        time.sleep(0.05)
    assert is_written()
    conversations.delete_turn(chat, 2)
    assert files(data_dir / "kv") == []
    assert conversations.ask(chat, "What else? " * 9).wait_ended(60)
    conversations.close()
    assert files(data_dir / "kv")
    assert not is_written()


def test_a_model_with_layers_of_the_library_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    config = config_json("latent") | {"vocab_size": len(tiny_tokenizer())}
    asked = AutoConfig.for_model(config.pop("model_type"), **config)
    folder = tmp_path / "latent"
    AutoModelForCausalLM.from_config(asked, dtype=torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    flags = {"model": str(folder), "headroom": str(MIB)}
    engine = open_engine(resolve(flags=flags), tmp_path, silent, None)
    assert "notice.not_on_disk" in engine.loaded.notices
    answer_and_stop(engine, IDS)
    assert files(tmp_path / "kv") == []
