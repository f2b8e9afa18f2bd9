"""Quantised tensors of a container become single weights under their plain names.

`X.weight` with `X.weight_scale_inv`, `X.qweight` with `X.qzeros`, … turn into one `Encoded` named
`X.weight`, so the name maps of models know no scheme. Whether a tensor is quantised is decided by
what is stored, never by a config's lists of modules (`ignore`, `modules_to_not_convert`); the
config says what the tensors cannot: block and group sizes, bits, zero points. Scales of
activations and caches are dropped: only weights are quantised here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zllm.errors import LoadError
from zllm.weight import packed_weights, scaled_weights
from zllm.weight.linear_weight import LinearWeight, OneTensor
from zllm.weight.quantization_config import Quantization
from zllm.weight.siblings import Siblings

_ACTIVATION = re.compile(
    r"(.*\.)?((input|output|activation)_(scale|scale_inv|global_scale|zero_point|g_idx)"
    r"|[qkv]_(scale|zero_point)|prob_scale|(gate_up|down)_proj_input_scale)"
)
_CODES = ("f8_e4m3", "f8_e5m2", "i8", "u8", "f4")


def assemble(
    tensors: Mapping[str, OneTensor], quantization: Quantization | None
) -> dict[str, LinearWeight]:
    """All tensors by name, each quantised weight as one; the others as they are.

    LoadError names a tensor whose scales are missing, misshapen or not described by the config.
    """
    found: dict[str, LinearWeight] = {}
    siblings = Siblings(tensors)
    for name in tensors:
        built = _weight(name, siblings, quantization)
        if built is not None:
            found[built[0]] = built[1]
            siblings.used.add(name)
    for name, tensor in tensors.items():
        dropped = quantization is not None and _ACTIVATION.fullmatch(name)
        if name not in siblings.used and not dropped:
            found[name] = tensor
    return found


def _weight(
    name: str, siblings: Siblings, quantization: Quantization | None
) -> tuple[str, LinearWeight] | None:
    """The weight whose codes are the tensor `name`; None if the tensor is nothing special."""
    tensor = siblings.tensors[name]
    if name.endswith("_blocks") and f"{name[:-7]}_scales" in siblings.tensors:
        return name[:-7], scaled_weights.blocks_and_scales(name[:-7], siblings)
    module, _, leaf = name.rpartition(".")
    if leaf in ("qweight", "weight_packed"):
        if quantization is None:
            raise LoadError(f"tensor {name!r} is packed, and no quantization_config says how")
        stored_name = f"{module}.weight" if module else "weight"
        return stored_name, packed_weights.build(stored_name, name, siblings, quantization)
    if tensor.format not in _CODES:
        return None
    scale = siblings.scale_of(name)
    if scale is not None:
        return name, scaled_weights.build(name, scale, siblings, quantization)
    if quantization is not None and leaf == "weight" and len(tensor.shape) == 2:
        raise LoadError(
            f"tensor {name!r}: {tensor.format} codes without a scale; expected {name}_scale_inv or"
            f" {name}_scale"
        )
    return None
