"""Tiny random models and a small real tokenizer, to try everything on in a second.

The models are untrained: their words mean nothing, their arithmetic is the library's own. Nothing
is downloaded.
"""

import importlib.util
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from kvchat.memory.verdicts import STEPS, Verdict
from kvchat.models.builtin import builtin_folder
from kvchat.models.catalog import builtin
from kvchat.models.progress import Report, silent
from kvchat.models.verdicts import verdict_key
from kvchat.settings import Settings

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "The quick brown fox jumps over the lazy dog. What does the memory of this chat hold, and why?",
    "A model reads the question, then it writes the answer token by token until the end.",
    "한국어 문장을 조금 읽고 배웁니다. 안녕하세요, 무엇을 도와드릴까요? 메모리는 어디에 있나요?",
    "이모지도 있습니다: 👩‍👩‍👧 ✅ 🇰🇷 👍🏽 é ñ ü — “quotes” … 日本語 中文 Ελληνικά",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": x ** 2}  # 0123456789\n\n| a | b |\n|---|---|\n",
)

# What every kind has, unless it says otherwise below.
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,  # ten times the usual, so that the two best logits are apart
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    # head_dim is not hidden_size / heads
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    # two sliding layers, then a full one
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "num_key_value_heads": 1,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
    },
}


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on `TEXTS`: encodes any Unicode text, and has a chat template."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )


def tiny_config(kind: str, **changes: Any) -> PreTrainedConfig:
    """The config of a kind (`llama`, `qwen3`, `gemma3`), with any of its fields changed."""
    asked = _COMMON | _KINDS[kind] | {"vocab_size": len(tiny_tokenizer())} | changes
    return AutoConfig.for_model(asked.pop("model_type"), **asked)


def tiny_model(
    kind: str, seed: int = 0, **changes: Any
) -> tuple[PreTrainedConfig, PreTrainedModel]:
    """A random model in fp32 on the CPU, the same for the same seed; torch's own is left alone."""
    config = tiny_config(kind, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return config, model.eval()


def tiny_folder(
    kind: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """The folder, now holding such a model as people have them: config, safetensors, tokenizer."""
    _, model = tiny_model(kind, seed, **changes)
    model.to(dtype).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def key_of(folder: Path) -> str:
    """What the verdicts of the model in a folder are kept under."""
    return verdict_key(replace(Settings(), model=str(folder)))


def passed_verdicts() -> list[Verdict]:
    """What a model that passes in all that a planner steps down to was measured with."""
    return [Verdict(str(pair), 0.001, 99.0, 0.1, 512, "wording.en", 1.0) for pair in STEPS]


@cache
def builtin_data_dir() -> Path:
    """A data folder with the real built-in model, converted once a machine; only to be read.

    It lies in KVCHAT_TEST_CACHE, else in the user's cache folder, under the source file's digest.
    """
    made_from = builtin()
    if importlib.util.find_spec(made_from.package) is None:
        pytest.skip(f"the built-in model's package is missing: {made_from.requirement}")
    place = os.environ.get("KVCHAT_TEST_CACHE") or Path.home() / ".cache" / "kvchat-tests"
    data_dir = Path(place) / made_from.sha256[:16]
    builtin_folder(data_dir, Report(silent))
    return data_dir


def place_builtin(data_dir: Path) -> None:
    """Puts the converted model into a data folder of one's own, where it then takes no time."""
    source = builtin_data_dir() / "models" / builtin().name
    target = data_dir / "models" / builtin().name
    target.mkdir(parents=True)
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError:  # another disk
            shutil.copy2(file, target / file.name)
