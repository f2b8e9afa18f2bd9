"""gpt-oss: Hugging Face folders and GGUF files.

Canonical names: see weight/dense.py; each layer also has `sinks`, and for its MLP `router` and
`experts.{e}.` + `gate_up down` (rows of gate and up alternate), or `gate up down` where a file
stores them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zllm.model_spec import fields, gpt_oss
from zllm.model_spec.dense import values
from zllm.model_spec.gpt_oss import GptOssConfig
from zllm.weight import dense, experts, gguf_fields, names
from zllm.weight.dense import Scheme
from zllm.weight.experts import ExpertSizes
from zllm.weight.linear_weight import Encoded, LinearWeight, transposed
from zllm.weight.names import Expected, Tensors

# llama.cpp, openai-moe.cpp: the norm before the experts.
_GGUF = dense.GGUF.renamed(ffn_norm="post_attention_norm")


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[GptOssConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = gpt_oss.from_hf(config)
    selected = names.select(tensors, _expected_hf(spec, tensors), skip=dense.hf_skip(spec))
    for name, weight in selected.items():
        if len(weight.shape) == 3 and not isinstance(weight, Encoded):
            selected[name] = transposed(weight, name)  # [E, in, out] -> [E, out, in]
    return spec, experts.one_by_one(selected, spec.experts)


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[GptOssConfig, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    The file does not say which layers slide, how gates are clamped, and that YaRN's bounds are not
    rounded: those are as in the published models.
    """
    arch = metadata["general.architecture"]
    shared = gguf_fields.config(metadata, tensors, interleaved=False)
    window = fields.size(metadata, f"{arch}.attention.sliding_window")
    count = fields.size(metadata, f"{arch}.expert_count")
    width = fields.size(metadata, f"{arch}.expert_feed_forward_length", shared.ffn_width)
    shared = replace(shared, ffn_width=width, rope=replace(shared.rope, truncate=False))
    spec = GptOssConfig(
        **values(shared),
        windows=gpt_oss.alternating(window, shared.layers),
        experts=count,
        chosen_experts=fields.at_most(metadata, f"{arch}.expert_used_count", count),
        interleaved=False,
        attention_bias="blk.0.attn_q.bias" in tensors,
    )
    selected = names.select(tensors, _expected_gguf(spec), skip=dense.GGUF_SKIP)
    return spec, experts.one_by_one(selected, count)


def _expected_hf(spec: GptOssConfig, tensors: Mapping[str, LinearWeight]) -> Iterator[Expected]:
    """transformers, models/gpt_oss/modeling_gpt_oss.py."""
    yield from _without_experts(spec, dense.HF)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        yield Expected(f"{here}sinks", f"{there}self_attn.sinks", (spec.heads,))
        yield from _router(spec, here, f"{there}mlp.router")
        yield from _experts_hf(spec, f"{here}experts.", f"{there}mlp.experts.", tensors)


def _expected_gguf(spec: GptOssConfig) -> Iterator[Expected]:
    sizes = ExpertSizes(spec.experts, spec.width, spec.ffn_width)
    yield from _without_experts(spec, _GGUF)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"blk.{i}."
        yield Expected(f"{here}sinks", f"{there}attn_sinks.weight", (spec.heads,))
        yield from _router(spec, here, f"{there}ffn_gate_inp")
        yield from experts.expected_gguf(here, there, sizes, biased=True)


def _without_experts(spec: GptOssConfig, scheme: Scheme) -> Iterator[Expected]:
    biased = dense.ATTENTION if spec.attention_bias else frozenset[str]()
    return dense.expected(spec, scheme, biased=biased, sparse=(True,) * spec.layers)


def _router(spec: GptOssConfig, here: str, stored: str) -> Iterator[Expected]:
    yield Expected(f"{here}router", f"{stored}.weight", (spec.experts, spec.width))
    yield Expected(f"{here}router.bias", f"{stored}.bias", (spec.experts,))


def _experts_hf(
    spec: GptOssConfig, here: str, there: str, tensors: Mapping[str, LinearWeight]
) -> Iterator[Expected]:
    """Plain floats are stored [E, in, out], blocks [E, out, in]."""
    e, d, f = spec.experts, spec.width, spec.ffn_width
    for part, outputs, inputs in (("gate_up", 2 * f, d), ("down", d, f)):
        stored = f"{there}{part}_proj"
        in_blocks = isinstance(tensors.get(stored), Encoded)
        shape = (e, outputs, inputs) if in_blocks else (e, inputs, outputs)
        yield Expected(here + part, stored, shape)
        yield Expected(f"{here}{part}.bias", f"{stored}_bias", (e, outputs))
