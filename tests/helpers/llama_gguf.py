"""A Hugging Face llama folder rewritten as GGUF, the way llama.cpp's converter does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.files import GgufTensor, write_gguf
from zllm.model_spec.llama import LlamaConfig
from zllm.quant.formats import decode
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import LinearWeight, format_of

_PARTS = {
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    **{part: f"attn_{part}" for part in "qkv"},
}


def write_llama_gguf(
    folder: Path, path: Path, extra: Mapping[str, Any] | None = None, *, gap: int = 0
) -> Path:
    """The checkpoint in `folder` as float32 GGUF, q and k permuted; `extra` adds metadata, `gap`
    bytes of nothing before the tensors.
    """
    checkpoint = open_checkpoint(folder)
    spec: LlamaConfig = checkpoint.config
    tensors: dict[str, GgufTensor] = {}
    for name, weight in checkpoint.tensors.items():
        values = as_array(weight)
        part = re.fullmatch(r"layers\.\d+\.([qk])(\.bias)?", name)
        if part:
            values = permute(values, spec.heads if part[1] == "q" else spec.kv_heads)
        tensors[gguf_name(name)] = ("f32", values.shape, values.tobytes())
    if spec.rope.scaling == "llama3":
        factors = llama3_factors(spec)
        tensors["rope_freqs.weight"] = ("f32", factors.shape, factors.tobytes())
    checkpoint.close()
    return write_gguf(path, {**_metadata(spec), **(extra or {})}, tensors, gap=gap)


def as_array(weight: LinearWeight) -> NDArray[np.float32]:
    return decode(format_of(weight), weight.data.read(), weight.shape[-1]).reshape(weight.shape)


def permute(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute: halves of a head become pairs."""
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def gguf_name(name: str) -> str:
    """The GGUF name of a canonical tensor."""
    simple = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
    if name in simple:
        return f"{simple[name]}.weight"
    _, layer, part, *bias = name.split(".")
    return f"blk.{layer}.{_PARTS.get(part, part)}.{'bias' if bias else 'weight'}"


def llama3_factors(spec: LlamaConfig) -> NDArray[np.float32]:
    """llama.cpp, convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    rope = spec.rope
    pairs = np.arange(0, spec.head_size, 2, dtype=np.float64) / spec.head_size
    wavelengths = 2 * np.pi * rope.theta**pairs
    low = rope.original_context / rope.low_freq_factor
    high = rope.original_context / rope.high_freq_factor
    smooth = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = 1 / ((1 - smooth) / rope.factor + smooth)
    chosen = np.where(wavelengths < high, 1.0, np.where(wavelengths > low, rope.factor, between))
    return chosen.astype(np.float32)


def _metadata(spec: LlamaConfig) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.vocab_size": spec.vocabulary,
        "llama.embedding_length": spec.width,
        "llama.feed_forward_length": spec.ffn_width,
        "llama.block_count": spec.layers,
        "llama.attention.head_count": spec.heads,
        "llama.attention.head_count_kv": spec.kv_heads,
        "llama.attention.key_length": spec.head_size,
        "llama.attention.value_length": spec.head_size,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps,
        "llama.context_length": spec.context,
        "llama.rope.dimension_count": spec.head_size,
        "llama.rope.freq_base": spec.rope.theta,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
