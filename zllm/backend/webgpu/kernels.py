"""Small arithmetic of launchers: override constants and grids."""

from __future__ import annotations

from collections.abc import Mapping

from zllm.backend.webgpu.device import DeviceInfo


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def constants(values: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Overrides as the driver takes them; bools are 0 and 1."""
    return tuple((name, float(value)) for name, value in values.items())


def strided_grid(groups: int, info: DeviceInfo) -> tuple[int, int, int]:
    """One dimension; the kernel strides over what does not fit."""
    return (max(1, min(groups, info.max_grid)), 1, 1)


def reduction(info: DeviceInfo) -> str:
    """The source that reduces over a workgroup."""
    return "reduce_subgroup" if "subgroups" in info.features else "reduce_tree"
