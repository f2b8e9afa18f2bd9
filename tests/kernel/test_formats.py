"""Products of one token and of many in every block format, against x·wᵀ in f64.

Seeded faults seen to fail: ZERO left out of block_dot; the halves' summands exchanged.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close, random_blocks
from zllm.backend.webgpu.wgsl_format import STORED
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

TOLERANCE = 3e-6  # of the largest result; measured: at most 5e-7

PLANES = [name for name, spec in STORED.items() if spec.planes]


# block_dot, which only software adapters run; what others run is decode (test_decode.py).
@pytest.mark.parametrize("bench", ["software"], indirect=True)
@pytest.mark.parametrize("format", PLANES)
def test_software_products(bench: Bench, rng: np.random.Generator, format: str) -> None:
    linear(bench, rng, format, 3)


@pytest.mark.parametrize("tokens", [1, 11])
@pytest.mark.parametrize("format", ["q5_k", "mxfp4"])
def test_products_of_every_shape(
    bench: Bench, rng: np.random.Generator, format: str, tokens: int
) -> None:
    linear(bench, rng, format, tokens)


def linear(bench: Bench, rng: np.random.Generator, format: str, tokens: int) -> None:
    rows, columns = 19, 3 * formats.lookup(format).block_elements
    encoded = random_blocks(rng, format, rows, columns)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    out = bench.output(tokens, rows, gap=2)
    w = bench.matrix((format, encoded), columns=columns)
    bench.run("linear", (bench.input(x), w, None, None), (out,))

    assert bench.untouched([out])
    weights = formats.decode(format, encoded, columns).astype(np.float64)
    assert 1e-2 < np.abs(weights).mean() < 100
    assert_close(bench.values(out), (x @ weights.T).astype(np.float32), TOLERANCE)
