"""rms_norm against its reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close
from zllm.norm import RmsNormSpec, rms_norm

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: 2e-7. Seeded faults seen to fail: ten times eps, an element less.
TOLERANCE = 1e-6

SHAPES = {
    "decode": (1, 576),
    "many-rows": (33, 48),
    "narrow": (2, 7),  # fewer elements than lanes
    "odd": (3, 1023),
}


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["unit", "tiny"])  # tiny: eps matters
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rms_norm(
    bench: Bench, rng: np.random.Generator, shape: tuple[int, int], scale: float
) -> None:
    x = rng.standard_normal(shape).astype(np.float32) * np.float32(scale)
    w = rng.standard_normal(shape[1]).astype(np.float32)
    out = bench.output(*shape, gap=1)
    spec = RmsNormSpec(1e-6)
    bench.run("rms_norm", (bench.input(x, offset=3, gap=5), bench.vector(w)), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), rms_norm(x, w, spec), TOLERANCE)


def test_rms_norm_of_each_head(bench: Bench, rng: np.random.Generator) -> None:
    """Seeded faults seen to fail: the offset left out, heads of another row."""
    rows, heads, size = 5, 3, 20
    x = rng.standard_normal((rows, heads, size)).astype(np.float32)
    x *= np.arange(1, rows * heads + 1, dtype=np.float32).reshape(rows, heads, 1)
    w = rng.standard_normal(size).astype(np.float32)
    out = bench.output(rows, heads * size, gap=1)
    spec = RmsNormSpec(1e-3, offset=1.0)
    flat = bench.input(x.reshape(rows, -1), offset=3, gap=5)
    bench.run("rms_norm", (flat, bench.vector(w)), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), rms_norm(x, w, spec).reshape(rows, -1), TOLERANCE)
