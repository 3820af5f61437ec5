"""Vectors of a local model beside the search by words: the mechanics, over a tiny random model."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from kvchat.chat.conversations import Conversations
from kvchat.chat.meanings import Meanings, stands_out
from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import Scored
from kvchat.errors import ModelError
from kvchat.models.encoder import Encoder
from tests.chat.test_conversations import answered
from tests.chat.test_documents_in_chats import FACTS, pdf
from tests.tiny import tiny_tokenizer

Start = Callable[..., Conversations]
TEXTS = [f"{n} ships sail to harbour {n * 7}, say {'x' * n}" for n in range(24)]


@pytest.fixture(scope="session")
def encoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    config = BertConfig(
        vocab_size=len(tiny_tokenizer()), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=48, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        BertModel(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def passages(texts: list[str], document: str = "a" * 64) -> tuple[Passage, ...]:
    return tuple(Passage(document, n, 1, 1, text, ((0, 1),)) for n, text in enumerate(texts))


def made(meanings: Meanings, cut: tuple[Passage, ...]) -> None:
    meanings.want(cut[0].document, cut)
    until = time.monotonic() + 60
    while meanings._vectors(cut) is None:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_vectors_are_of_length_one_and_the_same_for_the_same_text(encoder_path: Path) -> None:
    encoder = Encoder(encoder_path)
    alone = encoder.vectors(["안녕하세요"], "query")
    padded = encoder.vectors(["안녕하세요", "a much longer text than that " * 9], "document")
    assert padded.norm(dim=-1).allclose(torch.ones(2))
    assert torch.allclose(alone[0], padded[0], atol=1e-5)
    assert not torch.allclose(padded[0], padded[1], atol=0.01)


def static_model(folder: Path, **more: torch.Tensor) -> torch.Tensor:
    """A table of vectors beside a tokenizer; returns the table."""
    folder.mkdir(parents=True)
    table = torch.randn(len(tiny_tokenizer()), 64, generator=torch.Generator().manual_seed(3))
    save_file({"embeddings": table, **more}, folder / "model.safetensors")
    tiny_tokenizer().save_pretrained(folder)
    return table


@pytest.mark.parametrize("part", ["", "0_StaticEmbedding"])
def test_a_static_model_gives_the_mean_of_its_rows(tmp_path: Path, part: str) -> None:
    table = static_model(tmp_path / "m" / part)
    ids = tiny_tokenizer()("ships sail", add_special_tokens=False)["input_ids"]
    found = Encoder(tmp_path / "m").vectors(["ships sail", ""], "document")
    wanted = torch.nn.functional.normalize(table[ids].mean(0), dim=-1)
    assert torch.allclose(found[0], wanted, atol=1e-6)
    assert not found[1].any()


def test_rows_of_a_static_model_may_be_shared_and_weighed(tmp_path: Path) -> None:
    count = len(tiny_tokenizer())
    mapping, weights = torch.arange(count) // 2, torch.arange(count) / count
    table = static_model(tmp_path / "m", mapping=mapping, weights=weights)
    ids = tiny_tokenizer()("ships sail", add_special_tokens=False)["input_ids"]
    wanted = (table[mapping[ids]] * weights[ids].unsqueeze(-1)).mean(0)
    (found,) = Encoder(tmp_path / "m").vectors(["ships sail"], "query")
    assert torch.allclose(found, torch.nn.functional.normalize(wanted, dim=-1), atol=1e-6)


def test_a_static_model_with_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    static_model(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError) as caught:
        Encoder(tmp_path / "m")
    assert caught.value.code == "embedding_model"


@pytest.mark.parametrize(
    "content", [{}, {"config.json": "{}"}, {"config.json": "no", "x.safetensors": ""}]
)
def test_a_folder_without_such_a_model_is_refused_in_one_sentence(
    tmp_path: Path, content: dict[str, str]
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError) as caught:
        Encoder(tmp_path)
    assert caught.value.code == "embedding_model"


def test_ranks_of_words_and_of_meanings_are_fused(encoder_path: Path, tmp_path: Path) -> None:
    meanings, cut = Meanings(tmp_path, lambda: str(encoder_path)), passages(TEXTS)
    made(meanings, cut)
    by_words = [Scored(cut[4], 9.0), Scored(cut[11], 7.0)]
    found = [one.passage.index for one in meanings.fused(by_words, TEXTS[11], [cut], 5)]
    assert found[0] == 11  # second by words and first by meaning
    assert 4 in found
    assert len(found) == len(set(found)) == 5
    meanings.close()


def test_where_words_find_nothing_a_passage_must_stand_out(
    encoder_path: Path, tmp_path: Path
) -> None:
    meanings, cut = Meanings(tmp_path, lambda: str(encoder_path)), passages(TEXTS[:3])
    made(meanings, cut)
    assert meanings.fused([], "Who won the cup?", [cut], 5) == []
    meanings.close()


def test_what_is_as_like_as_unrelated_questions_is_not_brought(tmp_path: Path) -> None:
    """By a static model, in which a passage's own words are as like it as can be."""
    static_model(tmp_path / "m")
    meanings, cut = Meanings(tmp_path / "v", lambda: str(tmp_path / "m")), passages(TEXTS)
    made(meanings, cut)
    found = meanings.fused([], TEXTS[11], [cut], 5)
    assert found[0].passage.index == 11
    assert meanings.fused([], "How do I mend a broken heart?", [cut], 5) == []
    meanings.close()


def test_how_far_above_is_far() -> None:
    usual = [0.70, 0.72, 0.74, 0.72]
    assert stands_out(0.81, usual)
    assert not stands_out(0.79, usual)
    assert not stands_out(0.74, [0.70] * 4)  # they hardly ever are that equal


def test_without_a_model_nothing_is_made(tmp_path: Path) -> None:
    meanings, cut = Meanings(tmp_path, lambda: ""), passages(TEXTS)
    meanings.want("a" * 64, cut)
    scored = [Scored(cut[1], 2.0)]
    assert meanings.fused(scored, "ships", [cut], 5) == scored
    meanings.close()
    assert list(tmp_path.iterdir()) == []


def test_vectors_are_kept_and_go_with_the_document(encoder_path: Path, tmp_path: Path) -> None:
    cut = passages(TEXTS)
    first = Meanings(tmp_path, lambda: str(encoder_path))
    made(first, cut)
    first.close()
    (file,) = tmp_path.iterdir()
    before = file.stat().st_mtime_ns
    again = Meanings(tmp_path, lambda: str(encoder_path))
    made(again, cut)
    assert file.stat().st_mtime_ns == before
    file.write_bytes(b"broken")
    third = Meanings(tmp_path, lambda: str(encoder_path))
    made(third, cut)
    assert file.stat().st_size > 1000  # made anew
    third.forget("a" * 64)
    assert list(tmp_path.iterdir()) == []
    for one in (again, third):
        one.close()


def test_a_chat_searches_by_meaning_too(start: Start, tmp_path: Path, encoder_path: Path) -> None:
    conversations = start(document_mode="passages", embedding_model=str(encoder_path), passages=1)
    chat = conversations.new_chat()
    pages = [f"{fact}\n" + f"Leaf {n} says little. " * 40 for n, fact in enumerate(FACTS)]
    sha = conversations.add_document(chat, pdf(tmp_path / "a.pdf", *pages), "a.pdf")
    conversations.wait_documents(chat)
    meanings = conversations._shelf.meanings
    assert meanings is not None
    made(meanings, conversations._shelf.passages(sha))
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert live.citations
    assert answered(conversations.ask(chat, "Thanks!")).citations == []


def test_a_folder_that_has_none_costs_no_answer(start: Start, tmp_path: Path) -> None:
    conversations = start(document_mode="passages", embedding_model=str(tmp_path / "nothing"))
    chat = conversations.new_chat()
    conversations.add_document(chat, pdf(tmp_path / "a.pdf", *FACTS), "a.pdf")
    live = answered(conversations.ask(chat, "Which lamp of the harbour?"))
    assert live.citations
