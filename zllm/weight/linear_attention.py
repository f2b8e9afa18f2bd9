"""Tensors of a KDA layer in a Hugging Face folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from zllm.model_spec.linear_attention import LinearAttention
from zllm.weight.names import Expected, Tensors

# Canonical name -> name in the file, of the projections.
_MATRICES = {
    "decay_a": "f_a_proj",
    "decay_b": "f_b_proj",
    "write": "b_proj",
    "gate_a": "g_a_proj",
    "gate_b": "g_b_proj",
    "o": "o_proj",
}


def expected(
    canonical: str, stored: str, width: int, sizes: LinearAttention, rate: tuple[int, ...]
) -> Iterator[Expected]:
    """The prefixes end in a dot. rate: the shape of `A_log`, one number for each head."""
    heads, size = sizes.heads, sizes.head_size
    inner = heads * size
    shapes = {
        "decay_a": (size, width),
        "decay_b": (inner, size),
        "write": (heads, width),
        "gate_a": (size, width),
        "gate_b": (inner, size),
        "o": (width, inner),
    }
    for part in "qkv":
        yield Expected(canonical + part, f"{stored}{part}_proj.weight", (inner, width))
        taps = (inner, 1, sizes.kernel)
        yield Expected(f"{canonical}{part}_conv", f"{stored}{part}_conv1d.weight", taps)
    for part, name in _MATRICES.items():
        yield Expected(canonical + part, f"{stored}{name}.weight", shapes[part])
    yield Expected(f"{canonical}decay_bias", f"{stored}dt_bias", (inner,))
    yield Expected(f"{canonical}decay_rate", f"{stored}A_log", rate)
    yield Expected(f"{canonical}o_norm", f"{stored}o_norm.weight", (size,))


def one_spelling(tensors: Tensors, rate: tuple[int, ...]) -> Tensors:
    """The file's tensors, each `A_log` with the shape `rate`; files have [H] or [1, 1, H, 1]."""
    return {
        name: replace(weight, shape=rate)
        if name.endswith(".A_log") and math.prod(weight.shape) == math.prod(rate)
        else weight
        for name, weight in tensors.items()
    }


def without_axes_of_one(selected: Tensors) -> Tensors:
    """Canonical tensors with taps as [C, kernel] and rates as [H]."""
    flat = dict(selected)
    for name, weight in selected.items():
        if name.endswith("_conv"):
            flat[name] = replace(weight, shape=(weight.shape[0], weight.shape[-1]))
        elif name.endswith("decay_rate"):
            flat[name] = replace(weight, shape=(math.prod(weight.shape),))
    return flat
