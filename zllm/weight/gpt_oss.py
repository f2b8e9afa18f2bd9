"""gpt-oss: the names of Hugging Face folders and of GGUF files, and GGUF's metadata.

Canonical names: `embed`, `norm`, `head`, and in each layer `layers.{i}.` + `attn_norm q k v sinks o
ffn_norm router` and `experts.{e}.` + `gate_up down` (rows of gate and up alternate), or `gate up
down` where a file stores them apart. A bias appends `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import gpt_oss
from zllm.model_spec.gpt_oss import GptOssConfig
from zllm.weight import experts, names
from zllm.weight.linear_weight import Encoded, LinearWeight, transposed
from zllm.weight.names import Expected, Tensors

# Tensors of all experts, and the parts of one, for `experts.per_expert`.
_FUSED = {
    f"experts.{name}": (f"experts.{{}}.{name}",)
    for name in ("gate_up", "gate_up.bias", "down", "down.bias")
}
_NOTHING = re.compile(r"(?!)")
_TIED = re.compile(r"lm_head\.weight")  # a tied checkpoint may still store the head


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[GptOssConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = gpt_oss.from_hf(config)
    skip = _TIED if spec.tied_embeddings else _NOTHING
    selected = names.select(tensors, _expected_hf(spec, tensors), skip=skip)
    for name, weight in selected.items():
        if len(weight.shape) == 3 and not isinstance(weight, Encoded):
            selected[name] = transposed(weight, name)  # [E, in, out] -> [E, out, in]
    return spec, experts.per_expert(selected, _FUSED, spec.experts)


def _expected_hf(spec: GptOssConfig, tensors: Mapping[str, LinearWeight]) -> Iterator[Expected]:
    """transformers, models/gpt_oss/modeling_gpt_oss.py."""
    d, table = spec.width, (spec.vocabulary, spec.width)
    yield Expected("embed", "model.embed_tokens.weight", table)
    yield Expected("norm", "model.norm.weight", (d,))
    if not spec.tied_embeddings:
        yield Expected("head", "lm_head.weight", table)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        yield Expected(f"{here}attn_norm", f"{there}input_layernorm.weight", (d,))
        yield Expected(f"{here}ffn_norm", f"{there}post_attention_layernorm.weight", (d,))
        yield Expected(f"{here}sinks", f"{there}self_attn.sinks", (spec.heads,))
        for part, shape in _attention(spec).items():
            yield Expected(here + part, f"{there}self_attn.{part}_proj.weight", shape)
            if spec.attention_bias:
                stored = f"{there}self_attn.{part}_proj.bias"
                yield Expected(f"{here}{part}.bias", stored, shape[:1])
        router = f"{there}mlp.router"
        yield Expected(f"{here}router", f"{router}.weight", (spec.experts, d))
        yield Expected(f"{here}router.bias", f"{router}.bias", (spec.experts,))
        yield from _experts_hf(spec, f"{here}experts.", f"{there}mlp.experts.", tensors)


def _experts_hf(
    spec: GptOssConfig, here: str, there: str, tensors: Mapping[str, LinearWeight]
) -> Iterator[Expected]:
    """Plain floats are stored [E, in, out], blocks [E, out, in]."""
    e, d, f = spec.experts, spec.width, spec.expert_width
    for part, outputs, inputs in (("gate_up", 2 * f, d), ("down", d, f)):
        stored = f"{there}{part}_proj"
        in_blocks = isinstance(tensors.get(stored), Encoded)
        yield Expected(
            here + part, stored, (e, outputs, inputs) if in_blocks else (e, inputs, outputs)
        )
        yield Expected(f"{here}{part}.bias", f"{stored}_bias", (e, outputs))


def _attention(spec: GptOssConfig) -> dict[str, tuple[int, ...]]:
    d, q, kv = spec.width, spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    return {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}
