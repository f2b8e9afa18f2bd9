"""Products of several tokens by product_pairs, in the settings of a search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close, random_blocks
from tests.kernel.conftest import GUISES
from zllm.activation import GatedSpec, gated
from zllm.backend.webgpu import product
from zllm.backend.webgpu.product import NormedSpec
from zllm.backend.webgpu.product_pairs import CODES
from zllm.backend.webgpu.tuned import PAIRS
from zllm.backend.webgpu.tuning import Choice, Few, Tuning
from zllm.linear import LinearSpec
from zllm.norm import RmsNormSpec, rms_norm
from zllm.quant import formats

if TYPE_CHECKING:
    from zllm.backend.webgpu.device import Dispatch
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

pytestmark = pytest.mark.vulkan

TOLERANCE = 6e-5  # of the largest result; measured: at most 3e-5
# format, columns, matrix rows, tokens. The last ones have groups of tokens.
SHAPES = {
    "q4_0-2": ("q4_0", 96, 13, 2),
    "q4_0-8": ("q4_0", 96, 103, 8),
    "q4_1-5": ("q4_1", 544, 70, 5),
    "q8_0-7": ("q8_0", 1120, 37, 7),
    "q4_0-chunks": ("q4_0", 2080, 9, 8),
    "q4_1-chunks": ("q4_1", 2080, 6, 3),
    "q8_0-16": ("q8_0", 160, 70, 16),
    "q4_0-11": ("q4_0", 96, 18, 11),
}


@pytest.fixture(params=["gpu", "gpu-plain"])
def gpu(request: pytest.FixtureRequest, kernel_device: WgpuDevice) -> Bench:
    """Without subgroups pairs are not packed: the older kernel stands in."""
    return Bench(kernel_device, replace(kernel_device.info, **GUISES[request.param]))


def choose(bench: Bench, few: Few) -> None:
    tuning = Tuning((Choice("", 64, few),), few_tokens=64, pair_tokens=64)
    bench.info = replace(bench.info, tuning=tuning)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_linear(gpu: Bench, rng: np.random.Generator, shape: tuple[str, int, int, int]) -> None:
    """Seeded faults seen to fail: x of another token of a group, of another chunk, of the other
    half of a block.
    """
    format, columns, rows, tokens = shape
    choose(gpu, PAIRS[0])
    encoded = random_blocks(rng, format, rows, columns)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    out = gpu.output(tokens, rows, gap=2)
    w = gpu.matrix((format, encoded), columns=columns)
    gpu.run("linear", (gpu.input(x), w, None, None), (out,))

    assert gpu.untouched([out])
    weights = formats.decode(format, encoded, columns).astype(np.float64)
    assert_close(gpu.values(out), (x @ weights.T).astype(np.float32), TOLERANCE)


@pytest.mark.parametrize("few", PAIRS, ids=str)
def test_every_setting_computes_the_same(gpu: Bench, rng: np.random.Generator, few: Few) -> None:
    """Gates with the norm before them. Seeded faults seen to fail: a partner of another row, sums
    of another team, the norm left out.
    """
    choose(gpu, few)
    for tokens, width in ((3, 21), (8, 85)):
        encoded = random_blocks(rng, "q4_1", 2 * width, 320)
        x = rng.standard_normal((tokens, 320)).astype(np.float32)
        x *= np.arange(1, tokens + 1, dtype=np.float32)[:, None]
        norm = rng.standard_normal(320).astype(np.float32)
        out = gpu.output(tokens, width, gap=3)
        w = gpu.joined("q4_1", encoded, (width, width), 320)
        spec = NormedSpec(RmsNormSpec(1e-2, offset=0.5), GatedSpec("silu"))
        gpu.run("norm_gated_linear", (gpu.input(x), gpu.vector(norm), w, None), (out,), spec)

        assert gpu.untouched([out])
        normed = rms_norm(x, norm, spec.norm)
        both = normed @ formats.decode("q4_1", encoded, 320).T
        expected = gated(both[:, :width], both[:, width:], GatedSpec("silu"))
        assert_close(gpu.values(out), expected, 2 * TOLERANCE)


@pytest.mark.parametrize("tokens", [4, 8])
def test_bias_residual_norm_banks_and_views(
    gpu: Bench, rng: np.random.Generator, tokens: int
) -> None:
    """q, k and v joined: three banks, one of a format without codes, which reads x normalised by
    itself; all views displaced. Seeded fault seen to fail: the residual of another row.
    """
    choose(gpu, PAIRS[0])
    columns, widths = 256, (48, 16, 16)
    parts = [
        (name, random_blocks(rng, name, rows, columns))
        for name, rows in zip(("q4_1", "q8_0", "q6_k"), widths, strict=True)
    ]
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    norm = rng.standard_normal(columns).astype(np.float32)
    bias = rng.standard_normal(80).astype(np.float32)
    residual = rng.standard_normal((tokens, 80)).astype(np.float32)
    outs = gpu.parts(tokens, widths)
    operands = (
        gpu.input(x, offset=3, gap=2),
        gpu.vector(norm, "norm"),
        gpu.matrix(*parts, columns=columns),
        gpu.vector(bias, "bias"),
        gpu.input(residual, gap=1),
    )
    spec = NormedSpec(RmsNormSpec(1e-5), LinearSpec(0.3))
    gpu.run("norm_linear", operands, outs, spec)

    assert gpu.untouched(outs)
    weights = np.concatenate([formats.decode(name, rows, columns) for name, rows in parts])
    y = rms_norm(x, norm, spec.norm) @ weights.astype(np.float64).T
    expected = (0.3 * (y + bias) + residual).astype(np.float32)
    got = np.concatenate([gpu.values(out) for out in outs], axis=1)
    assert_close(got, expected, TOLERANCE)


@pytest.mark.parametrize("format", CODES)
def test_integers_of_sixteen_bits(gpu: Bench, rng: np.random.Generator, format: str) -> None:
    """No element of x is off by more than half a unit, a 32,638th of the largest of its block:
    blocks of zeros, of one number, of tiny ones, and with an outlier. Seeded fault seen to fail:
    largest integers of 127 · 257 + 1, which leave their bytes.
    """
    choose(gpu, PAIRS[0])
    encoded = random_blocks(rng, format, 37, 640)
    x = rng.standard_normal((6, 640)).astype(np.float32)
    x[:, :32] = 0
    x[:, 32:64] = 1.7
    x[:, 64] = -3e4
    x[:, 96:128] *= np.float32(1e-20)
    x[:2, 128:] *= np.float32(1e30)
    x[5] = 0
    out = gpu.output(6, 37)
    w = gpu.matrix((format, encoded), columns=640)
    gpu.run("linear", (gpu.input(x), w, None, None), (out,))

    weights = formats.decode(format, encoded, 640).astype(np.float64)
    units = np.abs(x).reshape(6, 20, 32).max(axis=2) / 32638
    bound = 0.5 * units @ np.abs(weights).reshape(37, 20, 32).sum(axis=2).T
    bound += 1e-6 * np.abs(x) @ np.abs(weights).T
    off = np.abs(gpu.values(out) - x @ weights.T)
    assert (off <= bound).all()
    assert off[2:5].max() > 0.01 * bound[2:5].min()  # or floats have been compared


@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 17])
def test_which_kernel(gpu: Bench, rng: np.random.Generator, tokens: int) -> None:
    """Pairs for formats with codes; nothing new for one token or above the setting's tokens."""
    choice = Choice("", 16, PAIRS[0])
    gpu.info = replace(gpu.info, tuning=Tuning((choice,), few_tokens=16, pair_tokens=16))
    ran: list[str] = []
    for format in ("q4_0", "q6_k"):
        w = gpu.matrix((format, random_blocks(rng, format, 8, 256)), columns=256)
        view = gpu.view(gpu.input(np.ones((tokens, 256), np.float32)))
        target = gpu.view(gpu.output(tokens, 8))
        found: list[Dispatch] = product.dispatches(
            product.Product(view, target), gpu.banks(w), gpu.scratch, gpu.info
        )
        ran += [dispatch.kernel.name for dispatch in found]
    new = {"product_input_q4_0", "product_pairs_q4_0"}
    packed = 1 < tokens <= 16 and gpu.info.subgroup_size > 0
    assert new & set(ran) == (new if packed else set())
    assert not any("pairs_q6" in name or "input_q6" in name for name in ran)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [1, 4])
def test_what_is_not_finite_stays_so(
    gpu: Bench, rng: np.random.Generator, tokens: int, bad: float
) -> None:
    """One element of one token, where x may go as integers: all that reads it is not finite."""
    choose(gpu, PAIRS[0])
    encoded = random_blocks(rng, "q4_0", 21, 160)
    x = rng.standard_normal((tokens, 160)).astype(np.float32)
    x[-1, 70] = bad
    out = gpu.output(tokens, 21)
    w = gpu.matrix(("q4_0", encoded), columns=160)
    gpu.run("linear", (gpu.input(x), w, None, None), (out,))

    values = gpu.values(out)
    assert np.isfinite(values[:-1]).all()
    assert not np.isfinite(values[-1]).any()
