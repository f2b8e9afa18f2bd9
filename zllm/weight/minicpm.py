"""MiniCPM checkpoints: Hugging Face folders, GGUF files. Canonical names: see weight/dense.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import fields, minicpm
from zllm.model_spec.dense import values
from zllm.model_spec.minicpm import MiniCpmConfig
from zllm.weight import dense, gguf_fields, names
from zllm.weight.dense import Scheme
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[MiniCpmConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = minicpm.from_hf(config)
    return spec, names.select(tensors, _expected(spec, dense.HF), skip=dense.hf_skip(spec))


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[MiniCpmConfig, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    llama.cpp's converter permutes the rows of q and k here: see weight/llama.py.
    """
    shared = gguf_fields.config(metadata, tensors, interleaved=True)
    # Without these keys llama.cpp takes the numbers of the first published model.
    spec = MiniCpmConfig(
        **values(shared),
        embedding_scale=fields.positive(metadata, "minicpm.embedding_scale", 12.0),
        branch_scale=fields.positive(metadata, "minicpm.residual_scale", 1.4 / shared.layers**0.5),
        head_scale=1 / fields.positive(metadata, "minicpm.logit_scale", shared.width / 256),
        attention_bias="blk.0.attn_q.bias" in tensors,
    )
    return spec, names.select(tensors, _expected(spec, dense.GGUF), skip=dense.GGUF_SKIP)


def _expected(spec: MiniCpmConfig, scheme: Scheme) -> Iterator[Expected]:
    biased = dense.ATTENTION if spec.attention_bias else frozenset[str]()
    return dense.expected(spec, scheme, biased=biased)
