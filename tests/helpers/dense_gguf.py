"""Folders of dense decoders rewritten as GGUF, the way llama.cpp's converter does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.helpers.files import GgufTensor, write_gguf
from tests.helpers.golden import tensors as stored_tensors
from tests.helpers.llama_gguf import permute
from tests.helpers.tiny_model import GOLDEN
from zllm.weight import json_file

# gguf-py, gguf/tensor_mapping.py; gemma3 differs in what its norms are called.
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_dense_gguf(name: str, path: Path) -> Path:
    """The golden folder `name` (gemma3, minicpm, qwen2 or qwen3) as float32 GGUF."""
    config = json_file.read_object(GOLDEN / name / "config.json")
    tensors: dict[str, GgufTensor] = {}
    for stored, values in stored_tensors(name).items():
        if name == "gemma3" and stored.endswith("norm.weight"):
            values = values + 1
        if name == "minicpm" and (found := re.search(r"([qk])_proj\.weight", stored)):
            key = "num_attention_heads" if found[1] == "q" else "num_key_value_heads"
            values = permute(values, config[key])
        tensors[_gguf_name(name, stored)] = ("f32", values.shape, values.tobytes())
    return write_gguf(path, _metadata(name, config), tensors)


def _gguf_name(model: str, stored: str) -> str:
    base, kind = stored.removeprefix("model.").rsplit(".", 1)
    if base in _OUTER:
        return f"{_OUTER[base]}.{kind}"
    _, layer, part = base.split(".", 2)
    names = {**_NAMES, **_GEMMA} if model == "gemma3" else _NAMES
    return f"blk.{layer}.{names[part]}.{kind}"


def _metadata(name: str, config: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": 1e4,
    }
    if "head_dim" in config:
        fields["attention.key_length"] = fields["attention.value_length"] = config["head_dim"]
    if name == "qwen2":
        fields["rope.freq_base"] = 1e6
    if name == "qwen3":
        fields["rope.scaling.type"] = "yarn"
        fields["rope.scaling.factor"] = config["rope_parameters"]["factor"]
        fields["rope.scaling.original_context_length"] = 48
    if name == "minicpm":
        fields["embedding_scale"] = config["scale_emb"]
        fields["residual_scale"] = config["scale_depth"] / config["num_hidden_layers"] ** 0.5
        fields["logit_scale"] = config["hidden_size"] / config["dim_model_base"]
    if name == "gemma3":
        fields |= {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
        fields["attention.sliding_window"] = config["sliding_window"]
    metadata = {f"{name}.{key}": value for key, value in fields.items()}
    return {"general.architecture": name, **metadata}
