"""Every format's decoder in WGSL against the codec's golden values, bit for bit, through embed.

Seeded faults seen to fail: upper bits of Q6_K shifted by one; Q8_0's halves exchanged; repack
without the tail of a row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import Bench, random_blocks
from zllm.backend.contract import PlanKey
from zllm.backend.webgpu.wgsl_format import STORED
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

BLOCK_FORMATS = [name for name, spec in STORED.items() if spec.elements == 32]


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Bit patterns, with every NaN the same and one zero: a device may drop the sign of 0 · x, and
    subnormal numbers as well (MXFP4's smallest scales are subnormal, their products a little more).
    """
    plain = np.where(np.isnan(values), np.float32(np.nan), values)
    tiny = np.abs(plain) <= np.float32(12 * 2.0**-127)
    return np.where(tiny, np.float32(0), plain).view(np.uint32)


def decoded(
    bench: Bench, format: str, rows: NDArray[np.uint8], columns: int
) -> NDArray[np.float32]:
    count = len(rows)
    bench.plan(PlanKey(count, 1, 64, "none"), token=np.arange(count))
    bench.carry("token", np.zeros(4, np.int32))
    out = bench.output(count, columns)
    bench.run("embed", (bench.matrix((format, rows), columns=columns),), (out,))
    assert bench.untouched([out])
    return bench.values(out)


@pytest.mark.parametrize("pair", [("bytes", "truth"), ("rand_bytes", "rand_truth")], ids=str)
@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_blocks_decode_bit_exactly(
    plain_bench: Bench, data_dir: Path, format: str, pair: tuple[str, str]
) -> None:
    golden = np.load(data_dir / "quant" / f"gguf_{format}.npz")
    encoded, truth = golden[pair[0]], golden[pair[1]]
    rows = encoded.reshape(len(truth), -1)

    got = decoded(plain_bench, format, rows, truth.shape[1])

    np.testing.assert_array_equal(bits(got), bits(truth))


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_all_halves_decode_bit_exactly(plain_bench: Bench, data_dir: Path, format: str) -> None:
    golden = np.load(data_dir / "quant" / "float16.npz")
    codes, truth = golden["codes"], golden[format]

    got = decoded(
        plain_bench, format, codes.astype("<u2").reshape(1, -1).view(np.uint8), len(codes)
    )

    np.testing.assert_array_equal(bits(got.reshape(-1)), bits(truth))


@pytest.mark.parametrize("columns", [7, 8, 43], ids=lambda n: f"{n}-columns")
@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_rows_of_any_width(
    plain_bench: Bench, rng: np.random.Generator, format: str, columns: int
) -> None:
    rows = random_blocks(rng, format, 5, columns)
    expected = formats.decode(format, rows, columns)
    np.testing.assert_array_equal(decoded(plain_bench, format, rows, columns), expected)


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_rows_of_an_odd_number_of_blocks(
    plain_bench: Bench, rng: np.random.Generator, format: str
) -> None:
    columns = 3 * formats.lookup(format).block_elements
    rows = random_blocks(rng, format, 5, columns)
    expected = formats.decode(format, rows, columns)
    np.testing.assert_array_equal(decoded(plain_bench, format, rows, columns), expected)
