"""Qwen2 checkpoints: Hugging Face folders and GGUF files. Canonical names: see weight/dense.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zllm.model_spec import qwen2
from zllm.model_spec.dense import values
from zllm.model_spec.qwen2 import Qwen2Config
from zllm.weight import dense, gguf_fields, names
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen2Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = qwen2.from_hf(config)
    expected = dense.expected(spec, dense.HF, biased=dense.QKV)
    return spec, names.select(tensors, expected, skip=dense.hf_skip(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen2Config, Tensors]:
    """The spec and canonical weights of a GGUF file, which says nothing of windows.

    ValueError: what does not fit.
    """
    shared = gguf_fields.config(metadata, tensors, interleaved=False)
    spec = Qwen2Config(**values(shared), windows=(0,) * shared.layers)
    expected = dense.expected(spec, dense.GGUF, biased=dense.QKV)
    return spec, names.select(tensors, expected, skip=dense.GGUF_SKIP)
