"""layer_norm against its reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close
from zllm.norm import LayerNormSpec, layer_norm

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: 3e-7. Seeded faults seen to fail: no mean, no eps, runs of
# another row.
TOLERANCE = 2e-6

# rows, runs of a row, their width
SHAPES = {"decode": (1, 1, 576), "heads": (5, 3, 20), "narrow": (2, 1, 7), "odd": (3, 1, 1023)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_layer_norm(bench: Bench, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    rows, runs, width = shape
    x = rng.standard_normal(shape).astype(np.float32) + np.float32(2)
    x *= np.arange(1, rows * runs + 1, dtype=np.float32).reshape(rows, runs, 1)
    w, b = rng.standard_normal((2, width)).astype(np.float32)
    out = bench.output(rows, runs * width, gap=1)
    spec = LayerNormSpec(1e-2)
    flat = bench.input(x.reshape(rows, -1), offset=3, gap=5)
    bench.run("layer_norm", (flat, bench.vector(w), bench.vector(b, "bias")), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), layer_norm(x, w, b, spec).reshape(rows, -1), TOLERANCE)
