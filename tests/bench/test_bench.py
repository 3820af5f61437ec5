"""`bench` as a person calls it, over a tiny model."""

import json
from pathlib import Path

import pytest

from kvchat import cli
from kvchat.bench import DEFAULT, NAMES, planning, requantize, resume
from kvchat.bench.cache import Chats, measured, waste
from kvchat.bench.telling import told, told_at_once
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.memory.formats import FormatPair
from kvchat.models.verdicts import verdicts
from kvchat.units import MIB
from tests.tiny import key_of, tiny_folder

# 128 KiB a token as computed: 512 tokens in 64 MiB.
HELD = {"fp/fp": 512, "int8/int8": 960, "int4/int4": 1984, "llama.cpp f16": 512}


def test_fidelity_keeps_its_verdict(
    tmp_path: Path, data_dir: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows to read and rows for scripts; what was measured last is what is kept."""
    folder = str(tiny_folder("llama", tmp_path / "tiny"))
    words = ["bench", "fidelity", "--model", folder, "--text", str(text_file)]
    assert cli.main([*words, "--pairs", "int8,int2", "--json", "--lang", "en"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    said = [line for line in err.splitlines() if "tiny" in line or "fidelity" in line]
    assert [line.split()[0] for line in said] == ["Measuring", "fidelity:", "Loading"]
    assert [(row["pair"], row["passed"]) for row in rows] == [
        ("fp/fp", None), ("int8/int8", True), ("int2/int2", False),
    ]  # fmt: skip
    kept = verdicts(data_dir, key_of(Path(folder)))
    assert {pair: one.passed for pair, one in kept.items()} == {
        "int8/int8": True, "int2/int2": False,
    }  # fmt: skip
    assert kept["int2/int2"].kl == rows[2]["kl"]
    assert cli.main([*words, "--pairs", "int4,q4_0", "--lang", "ko"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["통과" in line for line in lines] == [False, True, False]  # or not: "통과 못 함"
    assert set(verdicts(data_dir, key_of(Path(folder)))) == {"int8/int8", "int2/int2", "int4/int4"}


def test_cache_needs_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setattr("kvchat.bench.cache.waste", lambda _: {"name": "waste"})
    assert cli.main(["bench", "cache", "--model", "/nowhere", "--pairs", "int8", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    held = {row["pair"]: row["tokens"] for row in rows if row["name"] == "cache"}
    # Of llama.cpp these are a GiB over 128 KiB, 68 KiB and 36 KiB.
    assert held == {
        "int8/int8": 16128, "llama.cpp f16": 8192, "llama.cpp q8_0": 15420,
        "llama.cpp q4_0": 29127,
    }  # fmt: skip


def test_what_is_measured_is_said_at_once() -> None:
    usual = told_at_once(DEFAULT, ("cache", "ui"), "m", "en")
    assert usual.startswith("Measuring prefill, decode of m: ")
    assert usual.endswith("cache, ui.")
    assert "NAME" not in told_at_once(("ui",), (), "m", "en")
    assert told_at_once(("ui",), (), "m", "ko").startswith("m에서 ui 측정")


def test_a_real_pool_holds_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvchat.bench.cache.waste", lambda _: {"name": "waste"})
    rows = list(measured(("fp", "int8", "int4"), 64 * MIB))
    held = {row["pair"]: row["tokens"] for row in rows if row["name"] == "cache"}
    assert {name: held[name] for name in HELD} == HELD


def test_layers_of_their_own_and_the_library_s_formats_have_their_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token of a layer: 4,096 bytes as computed, 2,080 in int8, 1,152 in quanto4; 32 layers."""
    monkeypatch.setattr("kvchat.bench.cache.waste", lambda _: {"name": "waste"})
    layers = "0-1=int8/int8, -1=fp/fp"
    rows = list(measured(("quanto4",), 64 * MIB, layers))
    assert rows[0]["layers"] == layers
    assert rows[0]["bytes_per_token"] == 29 * 1152 + 2 * 2080 + 4096
    most = 64 * MIB // (29 * 1152 + 2 * 2080 + 4096)
    assert 0.95 * most < rows[0]["tokens"] <= most
    assert layers in told(rows[0], "en")
    assert next(row["bytes_per_token"] for row in measured(("quanto4",), 64 * MIB)) == 36864


@pytest.mark.parametrize("then", [None, "int6/int4"])
def test_chats_that_live_near_the_limit(then: str | None) -> None:
    """Blocks are dropped and requantized; the pool stays whole, and little of it stands free."""
    chats = Chats(FormatPair.parse("fp"), then=FormatPair.parse(then) if then else None)
    row = waste(chats, num_turns=45)
    assert row["tokens"] > 4096
    assert 0 < row["mean_percent"] < 4
    assert row["mean_percent"] <= row["worst_percent"]
    assert chats.pool.limit_bytes is not None
    assert chats.pool.device_bytes <= chats.pool.limit_bytes
    chats.pool.check_integrity(held=0)
    stored = {str(block.pair) for block in chats.pool.index.all()}
    assert stored == ({"fp/fp"} if then is None else {"fp/fp", then})


def test_planning_reads_the_device_at_edges_only(engine: Engine) -> None:
    """Figures, not bounds: what a busy machine takes says nothing. All is as it was afterwards."""
    probe, seen = engine.room.probe, []
    right = probe.read

    def read() -> DeviceMemory:
        seen.append(1)
        return right()

    probe.read = read  # type: ignore[method-assign]
    rows = list(planning.measured(engine, (256, 512, 10**6)))
    del probe.read  # type: ignore[method-assign]
    most = engine.loaded.spec.max_positions - 256
    assert [row["context"] for row in rows] == [256, 512, most]
    for row in rows:
        assert 0 < row["between_us"] < row["edge_us"]
        assert row["edge_probe_us"] > 0
    assert len(seen) >= 301 * len(rows)
    assert engine.room.probe is probe
    assert engine.room.text is None
    engine.pool.check_integrity(0)
    assert engine.pool.device_bytes == 0


def test_requantize_frees_what_it_says(engine: Engine) -> None:
    rows = list(requantize.measured(engine, ("int8", "int4"), context=256))
    assert [row["pair"] for row in rows] == ["int8/int8", "int4/int4"]
    # 4 layers, 2 heads of 16 + 16 dimensions: 1,024 bytes a token in fp32, 288 in int8, 160 in int4
    assert [row["freed_bytes"] for row in rows] == [256 * (1024 - 288), 256 * (1024 - 160)]
    assert all(row["requantize_ms"] > 0 and row["steps_ms"] > 0 for row in rows)
    assert engine.pool.device_bytes == 0
    engine.pool.check_integrity(held=0)


def test_a_text_from_disk_is_not_read_again(engine: Engine) -> None:
    """The second engine finds all of it."""
    (row,) = resume.measured(engine, (640,))
    assert (row["context"], row["reused"], row["pair"]) == (640, 640, "int8/int8")
    whole = 640 * sum(g.bytes_per_token for g in engine.pool.geometries)
    assert whole / 4 < row["file_bytes"] < whole
    assert min(row["read_again_ms"], row["resumed_ms"], row["step_ms"]) > 0


def test_a_name_that_is_no_benchmark(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    for words in (["speed"], ["fidelity", "--pairs", "int7"], ["cache", "--pairs", "all,int7"]):
        assert cli.main(["bench", *words, "--lang", "en"]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "int6" in said or ", ".join(NAMES) in said


def test_every_row_has_a_line() -> None:
    rows: list[dict[str, object]] = [
        {"name": "waste", "pair": "fp", "turns": 9, "mean_percent": 1.5, "worst_percent": 2.25},
        {"name": "cache", "model": "m", "pair": "fp", "limit_bytes": 2**30, "tokens": 8192,
         "bytes_per_token": 131072.0},
        {"name": "planning", "context": 1024, "blocks": 16, "between_us": 0.4, "edge_us": 31.0,
         "edge_probe_us": 180.0},
        {"name": "requantize", "pair": "int8/int8", "tokens": 4096, "threads": 1, "steps": 5,
         "requantize_ms": 1.5, "steps_ms": 2.5, "freed_bytes": 2**20},
        {"name": "decode", "context": 512, "threads": 2, "kvchat_ms": 1.0, "library_ms": 2.0,
         "ratio": 2.0, "cpu_ratio": 2.1},
        {"name": "resume", "context": 4096, "pair": "int8/int8", "threads": 1, "reused": 4096,
         "read_again_ms": 20.0, "resumed_ms": 1.0, "files_ms": 0.5, "file_bytes": 2**20,
         "step_ms": 0.4, "ratio": 20.0},
    ]  # fmt: skip
    for row in rows:
        for lang in ("en", "ko"):
            assert told(row, lang)  # type: ignore[arg-type]
    assert "8,192 tokens, 131,072 bytes each" in told(rows[1], "en")
