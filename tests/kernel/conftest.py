"""One device for all kernel tests, and the guises in which it is tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.kernel.bench import Bench

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

# The launchers choose kernels by these alone, so a software adapter can test the GPU's as well.
GUISES = {
    "software": {"software": True},
    "software-plain": {"software": True, "features": frozenset(), "subgroup_size": 0},
    # SwiftShader's size: other subgroups run it with some lanes idle, or as several.
    "software-quads": {"software": True, "features": frozenset({"subgroups"}), "subgroup_size": 4},
    "gpu": {"software": False},
    "gpu-plain": {"software": False, "features": frozenset(), "subgroup_size": 0},
}


@pytest.fixture(scope="session")
def kernel_device() -> Iterator[WgpuDevice]:
    from zllm.backend.webgpu.wgpu_device import open_device

    device = open_device()
    yield device
    device.close()


@pytest.fixture(params=GUISES)
def bench(request: pytest.FixtureRequest, kernel_device: WgpuDevice) -> Bench:
    """A bench for ops whose kernels differ between guises."""
    return Bench(kernel_device, replace(kernel_device.info, **GUISES[request.param]))


@pytest.fixture
def plain_bench(kernel_device: WgpuDevice) -> Bench:
    """A bench for ops that have one kernel."""
    return Bench(kernel_device, kernel_device.info)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
