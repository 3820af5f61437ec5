"""Fidelity: what it measures on a tiny model, through the product's own cache."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvchat.bench.fidelity import (
    ALL_PAIRS,
    DEFAULT_PAIRS,
    LENGTHS,
    chosen_pairs,
    measured,
    verdict_of,
)
from kvchat.bench.readers import PEERS, make_reader, q4_0, q8_0, rotated_q4_0
from kvchat.bench.text import sample
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.fidelity import PairReader, Score
from kvchat.engine.limits import Limits
from kvchat.errors import DocumentError, KVChatError, OutOfMemory, SettingsError
from kvchat.memory.formats import FormatPair
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB
from kvchat.wording import table

SHORT = replace(LENGTHS, num_tokens=768, num_scored=384, num_around_needles=448)
FP, INT8, INT4, INT2 = "fp/fp", "int8/int8", "int4/int4", "int2/int2"
OWN = (INT8, INT4, INT2)


@pytest.fixture(scope="module")
def rows(engine: Engine, text_file: Path) -> dict[str, dict[str, object]]:
    found = measured(engine, sample(text_file, "tiny", "en"), ("int8", "int4", INT2, *PEERS), SHORT)
    return {str(row["pair"]): row for row in found}


@pytest.mark.slow
def test_rows_of_a_real_run(rows: dict[str, dict[str, object]]) -> None:
    """The uncompressed run first and equal to itself, and less exact formats further from it."""
    assert list(rows) == [FP, *OWN, *PEERS]
    assert (rows[FP]["kl"], rows[FP]["same_percent"]) == (0.0, 100.0)
    for row in rows.values():
        assert (row["tokens"], row["scored"], row["text"]) == (768, 384, "words.txt")
    divergence = [rows[name]["kl"] for name in (FP, *OWN)]
    assert divergence == sorted(divergence)
    assert len(set(divergence)) == len(divergence)
    assert rows["q8_0"]["kl"] < rows["q4_0"]["kl"]
    assert rows["q4_0"]["ppl"] != rows[FP]["ppl"]
    assert [rows[name]["bits"] for name in (FP, INT8, INT4, "q4_0")] == [32, 9, 5, 4.5]


@pytest.mark.slow
def test_a_random_model_is_not_asked_for_needles(rows: dict[str, dict[str, object]]) -> None:
    assert {row["needles_asked"] for row in rows.values()} == {0}
    assert {row["needles"] for row in rows.values()} == {None}


@pytest.mark.slow
def test_only_our_own_pairs_get_a_verdict(rows: dict[str, dict[str, object]]) -> None:
    kept = {name: verdict_of(row) for name, row in rows.items()}
    assert {name for name, one in kept.items() if one is not None} == set(OWN)
    int8, int2 = kept[INT8], kept[INT2]
    assert int8 is not None
    assert int2 is not None
    assert int8.passed
    assert not int2.passed
    assert int8.kl == rows[INT8]["kl"]
    assert int8.num_scored == 384


def test_what_is_read_is_what_the_formats_kept(engine: Engine) -> None:
    """Beyond the hot window, blocks lie in the pair that was asked for, in a pool of their own."""
    reader = make_reader(engine, "int6/int4")
    assert isinstance(reader, PairReader)
    for start in range(0, 640, 64):
        reader.read(range(start % 128 + 3, start % 128 + 67), 1)
    pair = FormatPair.parse("int6/int4")
    (blocks,) = reader.text.sequence.tables
    assert [block.pair for block in blocks if block] == [pair] * 6
    assert engine.pool.device_bytes == 0


def test_logits_of_a_chunk_are_those_of_its_tokens(engine: Engine) -> None:
    ids = torch.arange(3, 99).tolist()
    whole = make_reader(engine, "fp").read(ids, len(ids))
    single, library = make_reader(engine, "fp"), make_reader(engine, "q8_0")
    for i, token in enumerate(ids[:20]):
        assert torch.allclose(single.read([token], 1)[0], whole[i], atol=1e-4)
    assert library.read(ids, 7).shape == (7, whole.shape[1])


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_0-rotated"])
def test_peers_lose_what_they_stored_not_what_is_in_flight(engine: Engine, name: str) -> None:
    ids = torch.arange(3, 131).tolist()
    peer, computed = make_reader(engine, name), make_reader(engine, "fp")
    assert torch.allclose(peer.read(ids[:64], 64), computed.read(ids[:64], 64), atol=1e-4)
    lost = (peer.read(ids[64:], 64) - computed.read(ids[64:], 64)).abs().max()
    assert lost > 1e-3


def test_divergence_by_hand() -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4): ln 2 - ln 3 / 2; perplexity of the id 0 is 4."""
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    score = Score(2.0)
    score.add(q, p, torch.tensor([0]))
    assert score.kl == pytest.approx(0.143841, abs=1e-6)
    assert score.perplexity == pytest.approx(4.0)
    score.add(q, q, torch.tensor([0]))
    assert (score.num_same, score.num_scored) == (1 + int(p.argmax() == q.argmax()), 2)


def test_llama_cpp_s_rounding() -> None:
    """Halves of a step at most, the largest value exact in q8_0 and -8 in q4_0."""
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))
    top = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True)
    for rounded, step in ((q8_0, top / 127), (q4_0, top / 8)):
        wrong = (rounded(x) - x).unflatten(-1, (-1, 32)).abs()
        assert bool((wrong <= 1.01 * step).all())
        assert bool((wrong <= 0.51 * step).float().mean() > 0.9)
    assert bool((q8_0(torch.zeros(1, 64)) == 0).all())
    assert bool((q4_0(torch.zeros(1, 64)) == 0).all())
    outlier = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    outlier[:, 3] = 40.0
    lost = [(keep(outlier) - outlier).norm() for keep in (q4_0, rotated_q4_0)]
    assert lost[1] < lost[0] * 1.5
    assert q4_0(outlier.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("asked", ["int7", "int8/int6/int4", "", "int8,q4_1", "int4/"])
def test_a_bad_pair_is_said_in_a_sentence(asked: str) -> None:
    with pytest.raises(SettingsError) as caught:
        chosen_pairs(asked)
    for lang in ("en", "ko"):
        assert "\n" not in caught.value.line(lang)  # type: ignore[arg-type]
    assert "int6/int4" in caught.value.line()


def test_pairs_are_named_in_one_way() -> None:
    assert chosen_pairs("int8, int6 / int4,int8/int8,q4_0") == ("int8/int8", "int6/int4", "q4_0")
    assert chosen_pairs(None) == chosen_pairs(",".join(DEFAULT_PAIRS))
    assert len(chosen_pairs("all")) == len(ALL_PAIRS)


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_text_that_ships_is_long_enough(lang: str, loaded: LoadedModel) -> None:
    found = sample(None, "unknown", lang)  # type: ignore[arg-type]
    assert (found.name, found.lang) == (f"wording.{lang}", lang)
    assert len(found.ids(loaded.tokenizer)) > LENGTHS.num_tokens
    assert table()["bench.needle"][lang] in found.text
    assert sample(None, "smollm2", lang).lang == "en"  # type: ignore[arg-type]


def test_texts_that_cannot_serve(engine: Engine, tmp_path: Path) -> None:
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"short\.txt has 2 tokens|short\.txt has \d"):
        list(measured(engine, sample(short, "tiny", "en"), ("int8",)))
    for file in (binary, tmp_path / "none.txt", tmp_path, tmp_path / "none.pdf"):
        with pytest.raises((SettingsError, DocumentError)) as caught:
            sample(file, "tiny", "en")
        assert isinstance(caught.value, KVChatError)
        assert "\n" not in caught.value.line("ko")


def test_refused_where_there_is_no_room(loaded: LoadedModel, text_file: Path) -> None:
    tight = DeviceMemory("cpu", 64 * GIB, 2**20, 0, 0, 0, 0.0)
    engine = Engine(loaded, FakeProbe([tight]), Limits(None, 0, RUNGS))
    with pytest.raises(OutOfMemory, match="benchmark needs"):
        list(measured(engine, sample(text_file, "tiny", "en"), OWN, SHORT))
