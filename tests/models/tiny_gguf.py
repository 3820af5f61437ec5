"""A tiny GGUF file, quantised like the built-in model's, with the tiny tokenizer."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from transformers import PreTrainedModel

from kvchat.models.catalog import Builtin, CatalogEntry
from kvchat.models.manifest import sha256
from tests.tiny import SPECIAL_TOKENS, tiny_model, tiny_tokenizer

_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tiny_builtin(package_folder: Path) -> tuple[Builtin, CatalogEntry, PreTrainedModel]:
    """The file in a package folder, what the catalog would say of it, and the model it is of."""
    config, model = tiny_model(
        "llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=128, unk_token_id=0
    )
    package_folder.mkdir()
    (package_folder / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    file = package_folder / "tiny.gguf"
    _write(file, model)
    made_from = Builtin(
        name="tiny",
        package=package_folder.name,
        requirement="tiny==1",
        file=file.name,
        bytes=file.stat().st_size,
        sha256=sha256(file),
    )
    wanted = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
              "rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id",
              "tie_word_embeddings")  # fmt: skip
    about = {key: getattr(config, key) for key in wanted}
    about |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    about["rope_theta"] = 10000.0
    entry = CatalogEntry(
        "tiny",
        "Tiny",
        "none/tiny",
        sum(p.numel() for p in model.parameters()),
        ("en",),
        "none",
        about,
    )
    return made_from, entry, model


def _write(file: Path, model: PreTrainedModel) -> None:
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _halves_together(values, config.head_dim)
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2:
            kind = (
                gguf.GGMLQuantizationType.Q8_0
                if "embed" in name
                else gguf.GGMLQuantizationType.Q4_1
            )
        writer.add_tensor(_name(name), quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *parts = name.removesuffix(".weight").split(".")
    return f"blk.{layer}.{_NAMES['.'.join(parts)]}.weight"


def _halves_together(values: np.ndarray, head_dim: int) -> np.ndarray:
    """As llama.cpp stores rotated heads: x0 y0 x1 y1 …"""
    width = values.shape[1]
    return values.reshape(-1, 2, head_dim // 2, width).swapaxes(1, 2).reshape(-1, width)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = tiny_tokenizer()
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in made["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template(str(tokenizer.chat_template))
