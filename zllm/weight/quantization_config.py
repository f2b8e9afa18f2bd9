"""What config.json says about how weights are quantised, in one form for all its dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zllm.errors import LoadError


@dataclass(frozen=True, slots=True)
class WeightArgs:
    """How the weights of the modules that `targets` names are quantised; 0 or None: not said."""

    targets: tuple[str, ...] = ()  # module names, class names or "re:" patterns; (): all
    bits: int = 0
    group_size: int = 0  # -1: one group per row
    block: tuple[int, int] | None = None

    def names(self, module: str) -> bool:
        """Whether a target names this module (not just its class)."""
        return any(_names(target, module) for target in self.targets)


@dataclass(frozen=True, slots=True)
class Quantization:
    """`method` is quant_method in lower case; `zero_offset` what GPTQ adds to stored zeros."""

    method: str
    groups: tuple[WeightArgs, ...] = (WeightArgs(),)
    zero_offset: int = 0

    def args(self, tensor: str) -> WeightArgs:
        """Of a tensor: the group that names its module, else the one that names classes."""
        module = tensor.rpartition(".")[0]
        named = [group for group in self.groups if group.names(module)]
        return (named or list(self.groups) or [WeightArgs()])[0]


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return module == target or module.endswith(f".{target}")


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """From a model's config.json; None if it says nothing. LoadError: what is not supported."""
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            found = holder.get(key)
            if found is not None:
                if not isinstance(found, Mapping):
                    raise LoadError(f"{key}: expected an object, got {type(found).__name__}")
                return _read(found)
    return None


def _read(found: Mapping[str, Any]) -> Quantization:
    method = found.get("quant_method")
    name = method.lower() if isinstance(method, str) else method
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None or not isinstance(name, str):
        known = ", ".join(_READERS)
        raise LoadError(
            f"quantization_config: quant_method {method!r} is not supported, supported: {known}"
        )
    return reader(name, found)


def _fp8(method: str, found: Mapping[str, Any]) -> Quantization:
    """DeepSeek-V3 and transformers FineGrainedFP8Config; fbgemm_fp8 has a scale per row."""
    if found.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise LoadError(f"quantization_config: fmt {found['fmt']!r} is not supported, use e4m3")
    return Quantization(method, (WeightArgs(bits=8, block=_block(found, "weight_block_size")),))


def _mx(method: str, found: Mapping[str, Any]) -> Quantization:
    """OCP Microscaling: the format fixes all numbers."""
    return Quantization(method)


def _gptq(method: str, found: Mapping[str, Any]) -> Quantization:
    """AutoGPTQ and GPTQModel: `checkpoint_format` gptq stores zero - 1, gptq_v2 the zero itself."""
    stored = found.get("checkpoint_format") or "gptq"
    if stored not in ("gptq", "gptq_v2"):
        raise LoadError(
            f"quantization_config: checkpoint_format {stored!r} is not supported, supported:"
            " gptq, gptq_v2"
        )
    dynamic = found.get("dynamic") or {}
    # "-:" rules leave modules unquantised, which their tensors show; others change the numbers.
    if any(not str(rule).startswith("-:") for rule in dynamic):
        raise LoadError("quantization_config: dynamic rules per module are not supported")
    args = WeightArgs(bits=_bits(found, "bits", (2, 4, 8)), group_size=_group(found))
    return Quantization(method, (args,), zero_offset=int(stored == "gptq"))


def _awq(method: str, found: Mapping[str, Any]) -> Quantization:
    version = found.get("version") or "gemm"
    if not isinstance(version, str) or version.lower() != "gemm":
        raise LoadError(f"quantization_config: AWQ version {version!r} is not supported, use gemm")
    key = "bits" if "bits" in found else "w_bit"
    group = _group(found, "group_size" if "group_size" in found else "q_group_size")
    return Quantization(method, (WeightArgs(bits=_bits(found, key, (4,)), group_size=group),))


_COMPRESSED = (
    "dense",
    "naive-quantized",
    "float-quantized",
    "int-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)


def _compressed_tensors(method: str, found: Mapping[str, Any]) -> Quantization:
    """vllm-project/compressed-tensors, quantization/quant_config.py and quant_args.py."""
    sparsity = found.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise LoadError(
            f"quantization_config: sparsity format {sparsity['format']!r} is not supported"
        )
    if found.get("transform_config"):
        raise LoadError("quantization_config: transform_config (rotations) is not supported")
    return Quantization(method, tuple(_config_groups(found, _COMPRESSED)))


_MODELOPT = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "MIXED_PRECISION")


def _modelopt(method: str, found: Mapping[str, Any]) -> Quantization:
    """NVIDIA ModelOpt, torch/export: the numbers may lie in `quantization` (hf_quant_config)."""
    inner = found.get("quantization")
    says = inner if isinstance(inner, Mapping) else found
    algorithm = says.get("quant_algo")
    if algorithm not in _MODELOPT:
        raise LoadError(
            f"quantization_config: quant_algo {algorithm!r} is not supported, supported:"
            f" {', '.join(_MODELOPT)}"
        )
    # The documented block of FP8_PB_WO, which configs leave out.
    block = (128, 128) if algorithm == "FP8_PB_WO" else None
    group = _group(says) if "group_size" in says else 0
    return Quantization(method, (WeightArgs(group_size=group, block=block),))


def _config_groups(found: Mapping[str, Any], formats: tuple[str, ...]) -> list[WeightArgs]:
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(g, Mapping) for g in groups.values()):
        raise LoadError("quantization_config: config_groups: expected an object of groups")
    read = []
    for name, group in groups.items():
        packed = group.get("format") or found.get("format") or "dense"
        if packed not in formats:
            raise LoadError(
                f"quantization_config: format {packed!r} is not supported, supported:"
                f" {', '.join(formats)}"
            )
        weights = group.get("weights")
        if isinstance(weights, Mapping):  # absent: only activations or caches are quantised
            read.append(_weight_args(f"config_groups.{name}", group, weights))
    return read


def _weight_args(where: str, group: Mapping[str, Any], weights: Mapping[str, Any]) -> WeightArgs:
    targets = [target for target in group.get("targets") or [] if isinstance(target, str)]
    for target in targets:
        _check_pattern(where, target)
    strategy = weights.get("strategy")
    strategies = ("tensor", "channel", "group", "tensor_group", "block", None)
    if strategy not in strategies:
        raise LoadError(f"quantization_config: {where}: strategy {strategy!r} is not supported")
    return WeightArgs(
        targets=tuple(targets),
        bits=_bits(weights, "num_bits", (4, 8)),
        group_size=_group(weights) if weights.get("group_size") is not None else 0,
        block=_block(weights, "block_structure"),
    )


def _check_pattern(where: str, target: str) -> None:
    try:
        re.compile(target.removeprefix("re:"))
    except re.error as error:
        raise LoadError(f"quantization_config: {where}: target {target!r}: {error}") from None


def _bits(found: Mapping[str, Any], key: str, allowed: tuple[int, ...]) -> int:
    bits = found.get(key)
    if type(bits) is not int or bits not in allowed:
        raise LoadError(f"quantization_config: {key} {bits!r} is not supported, use {allowed}")
    return bits


def _group(found: Mapping[str, Any], key: str = "group_size") -> int:
    size = found.get(key)
    if type(size) is not int or size == 0 or size < -1:
        raise LoadError(f"quantization_config: {key}: got {size!r}, expected a size or -1")
    return size


def _block(found: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    block = found.get(key)
    if block is None:
        return None
    if isinstance(block, str):  # compressed-tensors once wrote "128x128"
        block = [int(part) if part.isdecimal() else 0 for part in block.split("x")]
    valid = isinstance(block, list) and all(type(size) is int and size > 0 for size in block)
    if not valid or len(block) != 2:
        raise LoadError(f"quantization_config: {key}: got {block!r}, expected [rows, columns]")
    return block[0], block[1]


_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp8": _mx,
    "mxfp4": _mx,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}
