"""Qwen3 checkpoints: Hugging Face folders and GGUF files. Canonical names: see weight/dense.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import qwen3
from zllm.model_spec.dense import values
from zllm.model_spec.qwen3 import Qwen3Config
from zllm.weight import dense, gguf_fields, names
from zllm.weight.dense import Scheme
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen3Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = qwen3.from_hf(config)
    return spec, names.select(tensors, _expected(spec, dense.HF), skip=dense.hf_skip(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen3Config, Tensors]:
    """The spec and canonical weights of a GGUF file, which says nothing of windows.

    ValueError: what does not fit.
    """
    shared = gguf_fields.config(metadata, tensors, interleaved=False)
    bias = "blk.0.attn_q.bias" in tensors
    spec = Qwen3Config(**values(shared), windows=(0,) * shared.layers, attention_bias=bias)
    return spec, names.select(tensors, _expected(spec, dense.GGUF), skip=dense.GGUF_SKIP)


def _expected(spec: Qwen3Config, scheme: Scheme) -> Iterator[Expected]:
    biased = dense.ATTENTION if spec.attention_bias else frozenset[str]()
    return dense.expected(spec, scheme, head_norms=dense.NORMED_HEADS, biased=biased)
