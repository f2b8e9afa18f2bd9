"""The backends that the suite runs on, and how close each must come."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from zllm.backend.contract import Backend
from zllm.backend.selftest.case import LANES


@dataclass(frozen=True, slots=True)
class Opened:
    """A backend with LANES lanes on which no op falls back on another backend."""

    backend: Backend
    poison: Callable[[], None]  # fills the memory of results with NaN, between two rounds


@dataclass(frozen=True, slots=True)
class Expected:
    open: Callable[[], Opened]
    logits: float  # largest |difference| from the f64 truth, as a part of max|logit|
    ids_up_to_gap: float  # greedy ids are equal until the two best logits are closer than this
    marks: tuple[Any, ...] = ()


def _oracle() -> Opened:
    from zllm.backend.oracle.backend import OracleBackend

    backend = OracleBackend(lanes=LANES)

    def poison() -> None:
        for array in backend.arena._arrays:
            array.fill(np.nan)

    return Opened(backend, poison)


def webgpu(kv_dtype: Any = "f32", **guise: Any) -> Opened:
    """`guise`: fields of DeviceInfo to be changed, since kernels are chosen by it alone."""
    from dataclasses import replace

    from zllm.backend.webgpu.backend import WebGpuBackend
    from zllm.backend.webgpu.driver import open_device

    device = open_device()
    device.info = replace(device.info, **guise)
    backend = WebGpuBackend(device, lanes=LANES, kv_dtype=kv_dtype)

    def poison() -> None:
        for buffer in backend._pool.buffers:
            nans = np.full(buffer.size_bytes // 4, np.nan, np.float32)
            device.write(buffer, 0, nans.view(np.uint8).data)

    return Opened(backend, poison)


# A new backend is one more line. Tolerances: issue 2, "Must reach".
BACKENDS = {
    "oracle": Expected(_oracle, logits=1e-4, ids_up_to_gap=0.0),
    "webgpu": Expected(
        webgpu,
        logits=1e-3,
        ids_up_to_gap=1e-3,
        marks=(pytest.mark.vulkan,),
    ),
}


def chosen() -> list[Any]:
    """Every backend, or those that ZLLM_TEST_BACKENDS names; an unknown name is an error."""
    names = os.environ.get("ZLLM_TEST_BACKENDS", ",".join(BACKENDS)).split(",")
    return [pytest.param(name, marks=BACKENDS[name].marks) for name in names]
