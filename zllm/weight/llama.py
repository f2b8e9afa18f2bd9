"""Llama checkpoints: Hugging Face folders and GGUF files. Canonical names: see weight/dense.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zllm.model_spec import llama
from zllm.model_spec.dense import values
from zllm.model_spec.llama import LlamaConfig
from zllm.weight import dense, gguf_fields, names
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[LlamaConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = llama.from_hf(config)
    expected = dense.expected(spec, dense.HF, biased=_biased(spec))
    return spec, names.select(tensors, expected, skip=dense.hf_skip(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[LlamaConfig, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    llama.cpp's converter permutes the rows of q and k so that rotary pairs are neighbours. They
    stay so and `Rope.interleaved` says it: scores are sums over a head, in whatever order.
    """
    spec = LlamaConfig(
        **values(gguf_fields.config(metadata, tensors, interleaved=True)),
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
    )
    expected = dense.expected(spec, dense.GGUF, biased=_biased(spec))
    return spec, names.select(tensors, expected, skip=dense.GGUF_SKIP)


def _biased(spec: LlamaConfig) -> frozenset[str]:
    attention = dense.ATTENTION if spec.attention_bias else frozenset()
    return attention | (dense.MLP if spec.mlp_bias else frozenset())
