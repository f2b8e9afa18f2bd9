"""Latent attention in GGUF files: llama.cpp, gguf-py/gguf/constants.py, convert_hf_to_gguf.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zllm.errors import LoadError
from zllm.model_spec import fields
from zllm.model_spec.latent import Latent
from zllm.quant.apart import ApartSpec
from zllm.weight.linear_weight import Encoded, LinearWeight, OneTensor
from zllm.weight.names import Tensors

_TOGETHER = {
    "q": "attn_q",
    "q_a": "attn_q_a",
    "q_norm": "attn_q_a_norm",
    "q_b": "attn_q_b",
    "kv_a": "attn_kv_a_mqa",
    "kv_norm": "attn_kv_a_norm",
    "kv_b": "attn_kv_b",
    "o": "attn_output",
}
_APART = {**_TOGETHER, "k_b": "attn_k_b", "v_b": "attn_v_b"}
del _APART["kv_b"]


def parts(tensors: Mapping[str, LinearWeight]) -> Mapping[str, str]:
    """The names of a layer's parts, for `latent.expected`: early files keep `kv_b` whole."""
    return _TOGETHER if "blk.0.attn_kv_b.weight" in tensors else _APART


def sizes(metadata: Mapping[str, Any], *, value: int | None = None) -> Latent:
    """`value`: a head's value size where the file leaves it out. ValueError names the key.

    Files with keys and values apart describe a head by `key_length_mla`, and by `key_length` the
    latent.
    """
    key = f"{metadata['general.architecture']}."
    at = f"{key}attention."
    rotated = fields.size(metadata, f"{key}rope.dimension_count")
    whole = fields.size(metadata, f"{at}key_length_mla", _size(metadata, f"{at}key_length"))
    if whole <= rotated or rotated % 2:
        raise ValueError(
            f"{key}rope.dimension_count: got {rotated}, expected an even number below {whole}"
        )
    own = _size(metadata, f"{at}value_length") or value
    return Latent(
        query_rank=fields.count(metadata, f"{at}q_lora_rank", 0),
        rank=fields.size(metadata, f"{at}kv_lora_rank"),
        nope=whole - rotated,
        rotated=rotated,
        value=fields.size(metadata, f"{at}value_length_mla", own),
    )


def together(tensors: Tensors, latent: Latent) -> Tensors:
    """`k_b` and `v_b` of each layer as one `kv_b`; other tensors stay. LoadError: wrong kinds."""
    joined: Tensors = {}
    for name, weight in tensors.items():
        prefix, _, part = name.rpartition(".")
        if part == "k_b":
            joined[f"{prefix}.kv_b"] = _together(name, weight, tensors[f"{prefix}.v_b"], latent)
        elif part != "v_b":
            joined[name] = weight
    return joined


def _together(name: str, keys: LinearWeight, values: LinearWeight, latent: Latent) -> Encoded:
    if not isinstance(keys, OneTensor) or not isinstance(values, OneTensor):
        raise LoadError(f"tensor {name!r}: {keys.format} is no GGUF type")
    rows = keys.shape[0] * (latent.nope + latent.value)
    spec = ApartSpec(keys.format, latent.nope, latent.value, latent.rank)
    return Encoded((rows, latent.rank), keys.data, "apart", {"values": values}, spec, name=name)


def _size(metadata: Mapping[str, Any], key: str) -> int | None:
    return None if metadata.get(key) is None else fields.size(metadata, key)
