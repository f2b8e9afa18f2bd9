"""embed: carried tokens and tables of several banks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import Bench, random_blocks
from zllm.backend.contract import PlanKey
from zllm.linear import LinearSpec
from zllm.quant import formats

pytestmark = pytest.mark.vulkan


def test_carried_tokens_and_banks(plain_bench: Bench, rng: np.random.Generator) -> None:
    """Seeded fault seen to fail: the lane taken by row instead of by sequence."""
    columns = 64
    parts = [("q4_1", random_blocks(rng, "q4_1", 40, columns))]
    parts += [("f16", random_blocks(rng, "f16", 63, columns))]
    table = np.concatenate([formats.decode(f, rows, columns) for f, rows in parts])
    bench = plain_bench
    # Rows 1 and 3 take what lanes 2 and 0 drew; row 4 is the first of the second bank.
    bench.plan(
        PlanKey(6, 2, 64, "none"),
        token=[3, -1, 102, -1, 40, 39],
        seq=[0, 0, 0, 1, 1, 1],
        lane=[2, 0],
    )
    bench.carry("token", np.array([77, 5, 41, 6], np.int32))
    out = bench.output(6, columns, gap=3)
    bench.run("embed", (bench.matrix(*parts, columns=columns),), (out,))

    assert bench.untouched([out])
    np.testing.assert_array_equal(bench.values(out), table[[3, 41, 102, 77, 40, 39]])


def test_factor(plain_bench: Bench, rng: np.random.Generator) -> None:
    bench = plain_bench
    rows = random_blocks(rng, "f32", 9, 20)
    bench.plan(PlanKey(2, 1, 64, "none"), token=[8, 3])
    bench.carry("token", np.zeros(4, np.int32))
    out = bench.output(2, 20)
    bench.run("embed", (bench.matrix(("f32", rows), columns=20),), (out,), LinearSpec(24.0))

    np.testing.assert_array_equal(bench.values(out), 24 * formats.decode("f32", rows, 20)[[8, 3]])
