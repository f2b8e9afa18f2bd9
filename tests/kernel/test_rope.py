"""rope by itself against its reference, and tables of two parts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import Bench, assert_close
from zllm import rope
from zllm.backend.contract import BIAS, LONG, PlanKey, Weight
from zllm.rope import RopeSpec, RotateSpec

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: 1e-7. Seeded faults seen to fail: the other pairing, turned the
# other way, the flag of another sequence, the first part for all.
TOLERANCE = 1e-6
CONTEXT = 40

# heads, head size, first, rotated, interleaved, inverse
RANGES = {
    "whole": RotateSpec(3, 16, 0, 16, False),
    "last": RotateSpec(2, 21, 9, 12, True),
    "middle": RotateSpec(2, 17, 3, 10, False),
    "inverse": RotateSpec(4, 12, 8, 4, True, inverse=True),
}


def expected(
    x: NDArray[np.float32], angles: NDArray[np.float32], spec: RotateSpec
) -> NDArray[np.float32]:
    heads = x.reshape(len(x), spec.heads, spec.head_size).copy()
    part = slice(spec.first, spec.first + spec.rotated)
    if spec.inverse:
        angles = angles * np.repeat([1, -1], spec.rotated // 2).astype(np.float32)
    heads[..., part] = rope.rotate(heads[..., part], angles, interleaved=spec.interleaved)
    return heads.reshape(len(x), -1)


@pytest.mark.parametrize("long", [False, True], ids=["", "two-parts"])
@pytest.mark.parametrize("spec", RANGES.values(), ids=RANGES)
def test_rope(plain_bench: Bench, rng: np.random.Generator, spec: RotateSpec, long: bool) -> None:
    """Four rows of three sequences; the second is long, the third has other flags."""
    bench, half = plain_bench, spec.rotated // 2
    divisors = tuple(np.linspace(2, 5, half)) if long else ()
    table = rope.table(RopeSpec(spec.rotated, 1000.0, long_divisors=divisors), CONTEXT)
    positions, seqs = np.array([7, 39, 3, 3]), np.array([0, 1, 1, 2])
    bench.plan(
        PlanKey(4, 3, CONTEXT, "none"), position=positions, seq=seqs, flags=[0, LONG | BIAS, BIAS]
    )
    x = rng.standard_normal((4, spec.heads * spec.head_size)).astype(np.float32)
    weight = bench.vector(table, "rope")
    parts = (CONTEXT, CONTEXT) if long else (CONTEXT,)
    out = bench.output(*x.shape, gap=3)
    operands = (bench.input(x, offset=2, gap=1), Weight(weight.name, weight.shape, parts))
    bench.run("rope", operands, (out,), spec)

    assert bench.untouched([out])
    angles = table[positions + CONTEXT * ((seqs == 1) & long)]
    assert_close(bench.values(out), expected(x, angles, spec), TOLERANCE)
