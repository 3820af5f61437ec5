"""A GGUF file of the Llama family: its weights, and its byte-level tokenizer, for transformers.

The names and the order of q and k rows are llama.cpp's (its `convert_hf_to_gguf.py` puts the two
halves of a rotated head side by side; here they are put back). Reads one file; knows no folder and
no device.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # llama.cpp's token type of special tokens


class GGUFModel:
    def __init__(self, file: Path) -> None:
        self._reader = GGUFReader(file)

    def tensors(self, config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight's name in transformers, dequantised to fp32 [out, in]."""
        heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
        for tensor in self._reader.tensors:
            weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            if tensor.name in _OUTSIDE:
                yield _OUTSIDE[tensor.name], weight
                continue
            _, layer, part, _ = tensor.name.split(".")
            if part in heads:
                weight = _halves_apart(weight, heads[part])
            yield f"model.layers.{layer}.{_IN_LAYER[part]}.weight", weight

    def tokenizer(self, config: Mapping[str, Any]) -> PreTrainedTokenizerFast:
        """Digits one by one, then GPT-2's byte-level BPE: what llama.cpp calls `smollm`."""
        tokens: list[str] = self._read("tokenizer.ggml.tokens")
        types: list[int] = self._read("tokenizer.ggml.token_type")
        merges = [tuple(pair.split(" ")) for pair in self._read("tokenizer.ggml.merges")]
        inner = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        inner.decoder = decoders.ByteLevel()
        special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
        inner.add_special_tokens([AddedToken(token, special=True) for token in special])
        return PreTrainedTokenizerFast(
            tokenizer_object=inner,
            bos_token=tokens[config["bos_token_id"]],
            eos_token=tokens[config["eos_token_id"]],
            pad_token=tokens[config["pad_token_id"]],
            unk_token=tokens[self._read("tokenizer.ggml.unknown_token_id")],
            model_max_length=config["max_position_embeddings"],
            clean_up_tokenization_spaces=False,
            chat_template=self._read("tokenizer.chat_template"),
        )

    def _read(self, key: str) -> Any:
        return self._reader.fields[key].contents()


def _halves_apart(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * dim, in] with rows x0 y0 x1 y1 … of a head -> x0 x1 … y0 y1 …"""
    width = weight.shape[1]
    return weight.view(num_heads, -1, 2, width).transpose(1, 2).reshape(-1, width).contiguous()
