"""DeepSeek V3 checkpoints: the names of Hugging Face folders and of GGUF files.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm`, those of `weight/latent.py`, `ffn_norm`, and `gate up down` or
`router router.correction experts.{e}.gate …up …down shared.gate …up …down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zllm.model_spec import deepseek_v3, fields, grouped_experts
from zllm.model_spec.deepseek_v3 import DeepseekV3Config
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.model_spec.rope import Rope, yarn_scale
from zllm.weight import dense, experts, gguf_fields, latent, latent_gguf, names
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# Rotary frequencies follow from the config.
_SKIP = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
# A tied checkpoint may still store the head: transformers ignores it too.
_TIED_SKIP = r"lm_head\.weight"
_EXTRA_LAYER = re.compile(r"model\.layers\.(\d+)\.eh_proj\.weight")
_SIGMOID = 2  # gguf-py/gguf/constants.py, ExpertGatingFuncType


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How a container names things."""

    common: dense.Scheme
    attention: str  # prefix of latent attention's parts
    parts: Mapping[str, str]  # of latent attention
    router: str
    correction: str
    shared: Mapping[str, str]


# transformers, models/deepseek_v3/modeling_deepseek_v3.py
_HF = _Scheme(
    common=dense.HF,
    attention="self_attn.",
    parts=latent.HF,
    router="mlp.gate.weight",
    correction="mlp.gate.e_score_correction_bias",
    shared={part: f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
)
# gguf-py/gguf/constants.py
_GGUF = _Scheme(
    common=dense.GGUF,
    attention="",
    parts={},  # `latent_gguf.parts` tells which
    router="ffn_gate_inp.weight",
    correction="exp_probs_b.bias",
    shared={part: f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
)


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[DeepseekV3Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = deepseek_v3.from_hf(config)
    return spec, select(spec, tensors, expected(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[DeepseekV3Config, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    Rotary pairs are always interleaved there.
    """
    spec = _config_from_gguf(metadata, tensors)
    scheme = replace(_GGUF, parts=latent_gguf.parts(tensors))
    selected = names.select(tensors, expected(spec, scheme), skip=dense.GGUF_SKIP)
    together = latent_gguf.together(selected, spec.latent)
    return spec, experts.one_by_one(together, spec.experts.experts)


def select(
    spec: DeepseekV3Config, tensors: Mapping[str, LinearWeight], wanted: Iterator[Expected]
) -> Tensors:
    """The wanted tensors; layers for multi-token prediction behind the model's own are skipped."""
    extra = {
        found[1]
        for found in map(_EXTRA_LAYER.fullmatch, tensors)
        if found and int(found[1]) >= spec.layers
    }
    skip = [_SKIP, *([_TIED_SKIP] if spec.tied_embeddings else [])]
    skip += [rf"model\.layers\.{layer}\..*" for layer in extra]
    one_by_one = experts.per_expert(tensors, ExpertNames().fused, spec.experts.experts)
    return names.select(one_by_one, wanted, skip=re.compile("|".join(skip)))


def expected(spec: DeepseekV3Config, scheme: _Scheme = _HF) -> Iterator[Expected]:
    """Every tensor of the model, in its order; a Hugging Face folder's names if not told others."""
    table, vector = (spec.vocabulary, spec.width), (spec.width,)
    common = scheme.common
    yield Expected("embed", f"{common.embed}.weight", table)
    yield Expected("norm", f"{common.norm}.weight", vector)
    if not spec.tied_embeddings:
        yield Expected("head", f"{common.head}.weight", table)
    for i, sparse in enumerate(spec.sparse):
        here, there = f"layers.{i}.", common.layer.format(i)
        for norm in ("attn_norm", "ffn_norm"):
            yield Expected(here + norm, f"{there}{common.parts[norm]}.weight", vector)
        yield from latent.expected(
            here,
            there + scheme.attention,
            spec.latent,
            heads=spec.heads,
            width=spec.width,
            bias=spec.attention_bias,
            parts=scheme.parts,
        )
        if sparse:
            yield from _expected_experts(spec, scheme, here, there)
        else:
            yield from _gated(here, there, common.parts, spec.width, spec.ffn_width)


def _expected_experts(
    spec: DeepseekV3Config, scheme: _Scheme, here: str, there: str
) -> Iterator[Expected]:
    e = spec.experts
    yield Expected(f"{here}router", there + scheme.router, (e.experts, spec.width))
    yield Expected(f"{here}router.correction", there + scheme.correction, (e.experts,))
    sizes = ExpertSizes(e.experts, spec.width, e.width)
    if scheme.common is dense.GGUF:
        yield from experts.expected_gguf(here, there, sizes)
    else:
        yield from experts.expected(here, f"{there}mlp.", sizes, ExpertNames())
    if e.shared_width:
        yield from _gated(f"{here}shared.", there, scheme.shared, spec.width, e.shared_width)


def _gated(
    here: str, there: str, parts: Mapping[str, str], width: int, ffn_width: int
) -> Iterator[Expected]:
    yield Expected(f"{here}gate", f"{there}{parts['gate']}.weight", (ffn_width, width))
    yield Expected(f"{here}up", f"{there}{parts['up']}.weight", (ffn_width, width))
    yield Expected(f"{here}down", f"{there}{parts['down']}.weight", (width, ffn_width))


def _config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> DeepseekV3Config:
    """Keys: llama.cpp, gguf-py/gguf/constants.py and convert_hf_to_gguf.py, DeepseekV2Model."""
    key = f"{metadata['general.architecture']}."
    layers = fields.size(metadata, f"{key}block_count")
    dense_layers = fields.count(metadata, f"{key}leading_dense_block_count", 0)
    context = fields.size(metadata, f"{key}context_length")
    sizes = latent_gguf.sizes(metadata)
    return DeepseekV3Config(
        vocabulary=gguf_fields.vocabulary(metadata, tensors),
        width=fields.size(metadata, f"{key}embedding_length"),
        ffn_width=fields.size(metadata, f"{key}feed_forward_length"),
        layers=layers,
        heads=fields.size(metadata, f"{key}attention.head_count"),
        context=context,
        norm_eps=fields.positive(metadata, f"{key}attention.layer_norm_rms_epsilon"),
        latent=sizes,
        rope=_rope_from_gguf(metadata, tensors, context, sizes.rotated // 2),
        rope_interleaved=True,
        experts=_experts_from_gguf(metadata, key),
        sparse=tuple(i >= dense_layers for i in range(layers)),
        attention_bias="blk.0.attn_kv_a_mqa.bias" in tensors,
        tied_embeddings="output.weight" not in tensors,
    )


def _experts_from_gguf(metadata: Mapping[str, Any], key: str) -> GroupedExperts:
    if metadata.get(f"{key}expert_gating_func") != _SIGMOID:
        got = metadata.get(f"{key}expert_gating_func")
        raise ValueError(
            f"{key}expert_gating_func: got {got}, expected {_SIGMOID}, the sigmoid of DeepSeek V3"
        )
    width = fields.size(metadata, f"{key}expert_feed_forward_length")
    found = GroupedExperts(
        experts=fields.size(metadata, f"{key}expert_count"),
        chosen=fields.size(metadata, f"{key}expert_used_count"),
        width=width,
        shared_width=width * fields.count(metadata, f"{key}expert_shared_count", 0),
        groups=fields.size(metadata, f"{key}expert_group_count", 1),
        kept_groups=fields.size(metadata, f"{key}expert_group_used_count", 1),
        normalise=fields.flag(metadata, f"{key}expert_weights_norm", False),
        scale=fields.positive(metadata, f"{key}expert_weights_scale", 1.0),
    )
    grouped_experts.check(found)
    return found


def _rope_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight], context: int, pairs: int
) -> Rope:
    """llama.cpp takes mscale to be mscale_all_dim, so cos and sin keep their length."""
    rope = gguf_fields.rope(metadata, tensors, context, pairs)
    if rope.scaling != "yarn":
        return rope
    key = f"{metadata['general.architecture']}.rope.scaling.yarn_log_multiplier"
    # The file holds 0.1 · mscale_all_dim.
    all_dim = 10 * fields.positive(metadata, key) if metadata.get(key) else 0.0
    return replace(rope, attention_factor=1.0, score_factor=yarn_scale(rope.factor, all_dim) ** 2)
