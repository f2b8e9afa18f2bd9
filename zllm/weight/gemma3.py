"""Gemma 3 checkpoints: Hugging Face folders and GGUF files. Canonical names: see weight/dense.py.

A vision tower beside the text model is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import fields, gemma3
from zllm.model_spec.dense import values
from zllm.model_spec.gemma3 import Gemma3Config
from zllm.model_spec.rope import Rope
from zllm.weight import dense, gguf_fields, names
from zllm.weight.dense import Scheme
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# transformers, models/gemma3/modeling_gemma3.py
_HF = dense.HF.renamed(
    post_attn_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    post_ffn_norm="post_feedforward_layernorm",
)
# llama.cpp, src/llama-arch.cpp: LLM_ARCH_GEMMA3
_GGUF = dense.GGUF.renamed(post_attn_norm="post_attention_norm", post_ffn_norm="post_ffw_norm")
_NORMS = ("attn_norm", "post_attn_norm", "ffn_norm", "post_ffn_norm")

# Where the text model lies: by itself, and beside a vision tower, newer files first.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")
_VISION = r"(model\.)?(vision_tower|multi_modal_projector)\..*"


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Gemma3Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = gemma3.from_hf(config)
    usual = _PREFIXES[1 if config.get("text_config") else 0]
    prefix = next((p for p in _PREFIXES if f"{p}norm.weight" in tensors), usual)
    skip = dense.hf_skip(spec, _VISION)
    return spec, names.select(tensors, _expected(spec, _HF.under(prefix)), skip=skip)


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Gemma3Config, Tensors]:
    """The spec and canonical weights of a GGUF file, whose norms hold w itself.

    ValueError: what does not fit.
    """
    shared = gguf_fields.config(metadata, tensors, interleaved=False)
    window = fields.size(metadata, "gemma3.attention.sliding_window")
    local_theta = fields.positive(metadata, "gemma3.rope.freq_base_swa", gemma3.LOCAL_THETA)
    sliding = gemma3.pattern(shared.layers, gemma3.PATTERN)
    cap = metadata.get("gemma3.final_logit_softcapping")
    # The format does not say what scores are divided by; llama.cpp knows the 27B model by its
    # layers: src/llama-model.cpp, LLM_ARCH_GEMMA3.
    divisor = shared.width // shared.heads if shared.layers == 62 else shared.head_size
    spec = Gemma3Config(
        **values(shared),
        local_rope=Rope(local_theta),
        windows=tuple(window if slides else 0 for slides in sliding),
        score_scale=divisor**-0.5,
        norm_offset=0.0,
        logit_cap=fields.positive(metadata, "gemma3.final_logit_softcapping") if cap else 0.0,
    )
    return spec, names.select(tensors, _expected(spec, _GGUF), skip=dense.GGUF_SKIP)


def _expected(spec: Gemma3Config, scheme: Scheme) -> Iterator[Expected]:
    biased = dense.ATTENTION if spec.attention_bias else frozenset[str]()
    return dense.expected(spec, scheme, norms=_NORMS, head_norms=dense.NORMED_HEADS, biased=biased)
