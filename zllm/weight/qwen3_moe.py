"""Qwen3 with experts: Hugging Face folders and GGUF files.

Canonical names: see weight/dense.py; sparse layers have `router` and `experts.{e}.` + `gate up
down` instead of `gate up down`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import fields, qwen3_moe
from zllm.model_spec.dense import values
from zllm.model_spec.qwen3_moe import Qwen3MoeConfig
from zllm.weight import dense, experts, gguf_fields, names
from zllm.weight.dense import Scheme
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen3MoeConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = qwen3_moe.from_hf(config)
    single = experts.per_expert(tensors, ExpertNames().fused, spec.experts)
    return spec, names.select(single, _expected_hf(spec), skip=dense.hf_skip(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen3MoeConfig, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    llama.cpp takes every layer for sparse and always normalises (qwen3moe.cpp).
    """
    arch = metadata["general.architecture"]
    shared = gguf_fields.config(metadata, tensors, interleaved=False)
    count = fields.size(metadata, f"{arch}.expert_count")
    spec = Qwen3MoeConfig(
        **values(shared),
        sparse=(True,) * shared.layers,
        experts=count,
        chosen_experts=fields.at_most(metadata, f"{arch}.expert_used_count", count),
        expert_width=fields.size(metadata, f"{arch}.expert_feed_forward_length"),
        normalise=True,
        attention_bias="blk.0.attn_q.bias" in tensors,
    )
    selected = names.select(tensors, _expected_gguf(spec), skip=dense.GGUF_SKIP)
    return spec, experts.one_by_one(selected, count)


def _expected_hf(spec: Qwen3MoeConfig) -> Iterator[Expected]:
    """transformers, models/qwen3_moe/modeling_qwen3_moe.py."""
    yield from _without_experts(spec, dense.HF)
    for i in _sparse_layers(spec):
        here, there = f"layers.{i}.", f"model.layers.{i}.mlp."
        yield Expected(f"{here}router", f"{there}gate.weight", (spec.experts, spec.width))
        yield from experts.expected(here, there, _sizes(spec), ExpertNames())


def _expected_gguf(spec: Qwen3MoeConfig) -> Iterator[Expected]:
    yield from _without_experts(spec, dense.GGUF)
    for i in _sparse_layers(spec):
        here, there = f"layers.{i}.", f"blk.{i}."
        yield Expected(f"{here}router", f"{there}ffn_gate_inp.weight", (spec.experts, spec.width))
        yield from experts.expected_gguf(here, there, _sizes(spec))


def _without_experts(spec: Qwen3MoeConfig, scheme: Scheme) -> Iterator[Expected]:
    biased = dense.ATTENTION if spec.attention_bias else frozenset[str]()
    return dense.expected(
        spec, scheme, head_norms=dense.NORMED_HEADS, biased=biased, sparse=spec.sparse
    )


def _sparse_layers(spec: Qwen3MoeConfig) -> Iterator[int]:
    return (i for i, sparse in enumerate(spec.sparse) if sparse)


def _sizes(spec: Qwen3MoeConfig) -> ExpertSizes:
    return ExpertSizes(spec.experts, spec.width, spec.expert_width)
