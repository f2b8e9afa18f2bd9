"""Golden folders with experts rewritten as GGUF, the way llama.cpp's converter does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.files import GgufTensor, write_gguf

F32 = NDArray[np.float32]

# llama.cpp, gguf-py/gguf/tensor_mapping.py
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
}


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, F32],
    encoded: Mapping[str, GgufTensor] | None = None,
) -> Path:
    """A GGUF file of float32 tensors, and of others as they are."""
    stored: dict[str, GgufTensor] = {
        name: ("f32", array.shape, np.ascontiguousarray(array).tobytes())
        for name, array in tensors.items()
    }
    return write_gguf(path, metadata, {**stored, **(encoded or {})})


def mxfp4_tensor(blocks: F32, scales: F32) -> GgufTensor:
    """Blocks [E, N, D/32, 16], neighbours in a byte -> ggml's: halves of a block in a byte."""
    pairs = blocks.astype(np.uint8)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 32)
    halves = codes[..., :16] | codes[..., 16:] << 4
    data = np.concatenate([scales.astype(np.uint8)[..., None], halves], axis=-1)
    experts, rows, groups = pairs.shape[:3]
    return "mxfp4", (experts, rows, 32 * groups), data.tobytes()


def renamed(name: str, *, post_norm: str) -> str:
    """`post_norm`: what the norm before the experts is called."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    inner = name.removeprefix(layer[0]) if layer else name
    base, _, kind = inner.rpartition(".")
    if kind not in ("weight", "bias"):
        base, kind = inner, "weight"
    base = post_norm if base == "post_attention_layernorm" else _NAMES[base]
    return f"{f'blk.{layer[1]}.' if layer else ''}{base}.{kind}"


def one_by_one_to_fused(tensors: Mapping[str, F32], experts: int) -> dict[str, F32]:
    """`…experts.{e}.{part}_proj.weight` of every e become `blk.{i}.ffn_{part}_exps.weight`."""
    fused: dict[str, F32] = {}
    for name, array in tensors.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.0\.(\w+)_proj\.weight", name)
        if found:
            each = [tensors[name.replace("experts.0.", f"experts.{e}.")] for e in range(experts)]
            fused[f"blk.{found[1]}.ffn_{found[2]}_exps.weight"] = np.stack(each)
        elif ".experts." not in name:
            fused[renamed(name, post_norm="ffn_norm")] = array
    return fused


def alternating_to_apart(tensors: Mapping[str, F32]) -> dict[str, F32]:
    """Columns that alternate gate and up, inputs first -> rows apart, outputs first."""
    apart: dict[str, F32] = {}
    for name, array in tensors.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(.*)", name)
        if not found:
            apart[renamed(name, post_norm="post_attention_norm")] = array
            continue
        kind = "bias" if found[3] else "weight"
        rows = array if found[3] else array.swapaxes(1, 2)  # [E, N] or [E, N, D]
        prefix = f"blk.{found[1]}.ffn"
        if found[2] == "down":
            apart[f"{prefix}_down_exps.{kind}"] = rows
        else:
            apart[f"{prefix}_gate_exps.{kind}"] = rows[:, 0::2]
            apart[f"{prefix}_up_exps.{kind}"] = rows[:, 1::2]
    return apart


def metadata(arch: str, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What the converter writes of a config; `more` are keys below the architecture's name."""
    own = {
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "context_length": config["max_position_embeddings"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        **more,
    }
    return {"general.architecture": arch, **{f"{arch}.{key}": own[key] for key in own}}
