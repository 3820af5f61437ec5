"""The real built-in model: converted once a machine, then quick; it streams as it decodes."""

import importlib.util
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from kvchat.engine.detokenize import Detokenizer
from kvchat.models.builtin import builtin_folder
from kvchat.models.catalog import builtin, catalog
from kvchat.models.load import LoadedModel, load_model
from kvchat.models.progress import LoadProgress, Report, silent
from kvchat.models.weights import predicted_weight_bytes
from tests.tiny import builtin_data_dir, place_builtin

CPU = torch.device("cpu")
QUESTION = [{"role": "user", "content": "What is the capital of Korea?"}]


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2", data_dir=builtin_data_dir(), device=CPU)


def test_what_it_is(smollm2: LoadedModel) -> None:
    assert smollm2.name == "smollm2"
    assert smollm2.dtype == torch.float32
    assert smollm2.eos_token_ids == {2}
    assert smollm2.notices == ("notice.english_only",)
    assert smollm2.spec.max_positions == 8192
    assert smollm2.spec.kv_bytes(1, 16) == 2 * 3 * 64 * 30 * 2
    assert smollm2.weight_bytes // 2**20 == 513
    assert sum(p.numel() for p in smollm2.model.parameters()) == catalog()["smollm2"].parameters


@pytest.mark.parametrize(
    ("dtype", "weights", "mib"),
    [
        (torch.float32, "as-is", 513),
        (torch.bfloat16, "as-is", 256),
        (torch.float32, "int8", 209),
        (torch.float16, "int8", 155),
    ],
)
def test_its_bytes_foretold(dtype: torch.dtype, weights: str, mib: int) -> None:
    folder = builtin_data_dir() / "models" / "smollm2"
    assert predicted_weight_bytes(folder, dtype, weights) // 2**20 == mib


def test_it_answers(smollm2: LoadedModel) -> None:
    tokenizer: Any = smollm2.tokenizer
    ids = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    model: Any = smollm2.model
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of Korea is Seoul."


def test_a_data_folder_with_the_model_in_it_starts_without_converting(data_dir: Path) -> None:
    place_builtin(data_dir)
    told: list[LoadProgress] = []
    started = time.process_time()
    load_model("smollm2", data_dir=data_dir, device=CPU, progress=told.append)
    assert {one.stage for one in told} == {"weights", "prepare"}
    assert time.process_time() - started < 6  # about a second where nothing else runs


@pytest.mark.parametrize(
    "text",
    [
        "한국어 👩‍👩‍👧 ✅ é",
        "1. item\n\n2. in 2024,  12 of 34",
        "a <|im_end|> b",
        "def f(x):\n    return x ** 2",
    ],
)
def test_text_comes_back(smollm2: LoadedModel, text: str) -> None:
    tokenizer: Any = smollm2.tokenizer
    ids = tokenizer.encode(text, split_special_tokens=True)
    assert tokenizer.decode(ids) == text
    assert 2 not in ids


def test_digits_stand_alone(smollm2: LoadedModel) -> None:
    """As in its training: blanks before a digit are one token, each digit is one."""
    tokenizer: Any = smollm2.tokenizer
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("a\n\n12  34")]
    assert pieces == ["a", "\n\n", "1", "2", "  ", "3", "4"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=60)
)
def test_any_unicode_streams_as_it_decodes(text: str) -> None:
    tokenizer = streaming_tokenizer()
    ids = tokenizer.encode(text, split_special_tokens=True)
    detokenizer = Detokenizer(tokenizer, ())
    given_text = "".join(detokenizer.push(i) for i in ids) + detokenizer.flush()
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert given_text == detokenizer.text == decoded.replace("\ufffd", "")
    # A few bytes are not in its vocabulary: some control characters, planes beyond all scripts.
    assert decoded == text or not known_bytes().issuperset(text.encode())


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=100))
def test_any_ids_stream_without_broken_characters(ids: list[int]) -> None:
    tokenizer = streaming_tokenizer()
    detokenizer = Detokenizer(tokenizer, ())
    for i in ids:
        detokenizer.push(i)
        assert "\ufffd" not in detokenizer.text
    detokenizer.flush()
    expected = tokenizer.decode(ids, skip_special_tokens=True).replace("\ufffd", "")
    assert detokenizer.text == expected


@cache
def known_bytes() -> set[int]:
    vocabulary = streaming_tokenizer().get_vocab()
    return {byte for byte, name in bytes_to_unicode().items() if name in vocabulary}


@cache
def streaming_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(builtin_data_dir() / "models" / "smollm2")


@pytest.mark.slow
def test_the_conversion_loses_nothing_that_can_be_measured(tmp_path: Path) -> None:
    """From scratch, against the library's own reading of the file: weights bit for bit before fp16,
    and what fp16 changes over real text."""
    made_from = builtin()
    folder = builtin_folder(tmp_path, Report(silent))
    (place,) = importlib.util.find_spec(made_from.package).submodule_search_locations or []
    exact: Any = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=made_from.file, dtype=torch.float32
    )
    stored: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, weight in exact.named_parameters():
        assert torch.equal(weight.half().float(), stored.get_parameter(name)), name
    wanted = exact.config
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
                "tie_word_embeddings", "bos_token_id", "eos_token_id"):  # fmt: skip
        assert getattr(stored.config, key) == getattr(wanted, key), key
    assert stored.config.rope_parameters == wanted.rope_parameters
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder).encode(text)[:1200]])
    with torch.no_grad():
        expected = exact(ids).logits[0].log_softmax(-1)
        found = stored(ids).logits[0].log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert divergence < 1e-5
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.02
    assert clear.float().mean() > 0.95
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])
