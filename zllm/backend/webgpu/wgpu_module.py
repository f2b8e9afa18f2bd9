"""Shader modules without naga's guard against endless loops.

The guard is a counter in every loop. It keeps compilers from unrolling, and local arrays then live
in memory: products ran up to 17 times slower on an H200 (benchmarks/results). The kernels' loops
all end by themselves; bounds stay checked.
"""

from __future__ import annotations

from typing import Any

import wgpu

CHECKS = 1  # WGPUShaderRuntimeChecks_BoundsChecks (wgpu.h)
CHECKED_VERSION = "0.32.0"  # the release whose private parts were checked by a test


def create_module(device: Any, code: str, label: str) -> Any:
    """As device.create_shader_module; with the guard where wgpu-py is of another version."""
    if wgpu.__version__ != CHECKED_VERSION:
        return device.create_shader_module(code=code, label=label)
    from wgpu.backends.wgpu_native._api import libf

    guarded = libf.wgpuDeviceCreateShaderModule
    libf.wgpuDeviceCreateShaderModule = lambda handle, text: (
        libf.wgpuDeviceCreateShaderModuleTrusted(handle, text, CHECKS)
    )
    try:
        return device.create_shader_module(code=code, label=label)
    finally:
        libf.wgpuDeviceCreateShaderModule = guarded
