"""The GPU's kernels through Chromium's WGSL compiler, which is stricter than naga.

The browser slice runs the software guise; these are at least validated, and each sixth (with
ZLLM_TESTS=all: each) compiled with the overrides that launchers give it, which takes 0.5 s. Seeded
fault seen to fail: a barrier under `if (lane < half)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Playwright

from tests.conftest import ALL_TESTS
from tests.kernel.bench import Bench, random_blocks
from tests.kernel.conftest import GUISES
from zllm.activation import GatedSpec, SoftCapSpec
from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.attention.gqa import GqaSpec
from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import PlanKey
from zllm.backend.webgpu.bandwidth import copy_kernel
from zllm.backend.webgpu.device import DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.product import NormedSpec
from zllm.backend.webgpu.product_pairs import CODES
from zllm.backend.webgpu.store import Dtype
from zllm.backend.webgpu.tuned import PAIRS
from zllm.backend.webgpu.tuning import Choice, Tuning
from zllm.backend.webgpu.wgsl_format import CODED, FORMATS, resident
from zllm.hyper_connection import HyperSpec
from zllm.linear import GroupedLinearSpec
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.norm import LayerNormSpec, RmsNormSpec, UnitNormSpec
from zllm.rope import RotateSpec
from zllm.sampling import SampleSpec

pytestmark = pytest.mark.browser

ARGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
INFO = DeviceInfo("", True, frozenset({"subgroups"}), 4, 1 << 27, 1 << 28, 65535, 16384, 256)
SPEC = GqaSpec(6, 2, 8, 1.0, 8)
DTYPES: tuple[Dtype, ...] = ("f32", "f16")  # of keys and values

COMPILE = """async (kernels) => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice({ requiredFeatures: ["subgroups"] });
  const failures = [];
  await Promise.all(kernels.map(async ({ name, code, constants, entry, whole }) => {
    const module = device.createShaderModule({ code });
    const messages = (await module.getCompilationInfo()).messages;
    for (const m of messages) failures.push(`${name}:${m.lineNum}: ${m.type}: ${m.message}`);
    if (!whole) return;
    const compute = { module, entryPoint: entry, constants };
    await device.createComputePipelineAsync({ layout: "auto", compute })
      .catch((error) => failures.push(`${name}: ${error.message}`));
  }));
  return failures;
}"""


@dataclass
class Memory:
    size_bytes: int
    label: str


class Collector:
    """A device that keeps the kernels of its programs and runs nothing."""

    def __init__(self) -> None:
        self.kernels: dict[Kernel, None] = {}

    def buffer(self, size_bytes: int, label: str, /) -> Memory:
        return Memory(size_bytes, label)

    def write(self, *_: Any) -> None:
        pass

    def program(self, dispatches: list[Dispatch]) -> Collector:
        self.kernels |= dict.fromkeys(dispatch.kernel for dispatch in dispatches)
        return self

    def submit(self, _: memoryview) -> None:
        pass


def blocks(rng: np.random.Generator, format: str, rows: int = 16) -> NDArray[np.uint8]:
    """Rows of 256 columns, zeros where the host writes the resident form."""
    if format in CODED:
        return np.zeros((rows, 4 * resident(format, 256).row_words), np.uint8)
    return random_blocks(rng, format, rows, 256)


def record_ops(bench: Bench, rng: np.random.Generator, formats: Sequence[str]) -> None:
    """Each op once; products in the formats for one token, in the last one for many."""
    norm = bench.vector(np.ones(256, np.float32), "norm")
    for tokens in (1, 12):
        x, out = bench.input(np.ones((tokens, 256), np.float32)), bench.output(tokens, 16)
        for format in formats if tokens == 1 else formats[-1:]:
            w = bench.matrix((format, blocks(rng, format)), columns=256)
            bench.run("linear", (x, w, norm, out), (bench.output(tokens, 16),))
        # Rows that do not end with a block.
        ragged = bench.matrix(("f16", random_blocks(rng, "f16", 16, 9)), columns=9)
        narrow = bench.input(np.ones((tokens, 9), np.float32))
        bench.run("linear", (narrow, ragged, None, None), (out,))
        bench.run(
            "norm_linear", (x, norm, w, None, None), (out,), NormedSpec(RmsNormSpec(1e-5), None)
        )
        gated = (bench.output(tokens, 8),)
        spec = NormedSpec(RmsNormSpec(1e-5), GatedSpec("silu"))
        bench.run("norm_gated_linear", (x, norm, w, None), gated, spec)
    record_pairs(bench, rng, formats)
    many = bench.input(np.ones((70, 256), np.float32))  # enough for the wide tiles
    bench.run("linear", (many, w, None, None), (bench.output(70, 16),))
    bench.run("rms_norm", (x, norm), (bench.output(tokens, 256),), RmsNormSpec(1e-5))
    bench.run("gated", (x, x), (bench.output(tokens, 256),), GatedSpec("silu"))
    bench.run("add", (x, x), (bench.output(tokens, 256),))
    bench.run("layer_norm", (x, norm, norm), (bench.output(tokens, 256),), LayerNormSpec(1e-5))
    bench.run("soft_cap", (x,), (bench.output(tokens, 256),), SoftCapSpec(30.0))
    record_experts(bench, rng, formats[-1])
    record_compressed(bench, rng, formats[-1])
    record_recurrent(bench)
    for name in ("token", "result", "counts", "bias"):
        bench.carry(name, np.zeros(64, np.int32))
    bench.run("embed", (w,), (bench.output(1, 256),))
    bench.run("last_rows", (x,), (bench.output(1, 256),))
    for full, top in ((False, -1), (True, 3)):
        bench.run("sample", (out,), (), SampleSpec(16, full, top))
    bench.plan(PlanKey(1, 1, 1024, "none"), pages=300)
    kv = np.zeros((4, 2, 8), np.float32)
    q, k = bench.input(np.ones((1, 48), np.float32)), bench.input(np.ones((1, 16), np.float32))
    out = bench.output(1, 48, guard=4)
    for dtype in DTYPES:
        bench.plan(PlanKey(1, 1, 1024, "none"), pages=300)
        cache = bench.cache(kv, kv, dtype)
        bench.run("rope_append", (q, k, k, cache, norm), (out,), SPEC)
        bench.run("attend", (q, cache, norm), (out,), SPEC)
        bench.plan(PlanKey(9, 1, 1024, "none"), pages=300)
        rows = bench.input(np.ones((9, 48), np.float32))
        bench.run("attend", (rows, cache, norm), (bench.output(9, 48, guard=4),), SPEC)
    bench.plan(PlanKey(1, 1, 1024, "none"), pages=300)
    bench.run("rope", (q, norm), (out,), RotateSpec(6, 8, 4, 4, True))
    record_latent(bench, rng, formats)


def record_pairs(bench: Bench, rng: np.random.Generator, formats: Sequence[str]) -> None:
    """Of two tokens: SwiftShader takes minutes for the text of more."""
    usual, x = bench.info, bench.input(np.ones((2, 256), np.float32))
    norm = bench.vector(np.ones(256, np.float32), "norm")
    bench.info = replace(usual, tuning=Tuning((Choice("", 8, PAIRS[0]),)))
    for format in (name for name in CODES if name in formats):
        w = bench.matrix((format, blocks(rng, format)), columns=256)
        spec = NormedSpec(RmsNormSpec(1e-5), GatedSpec("silu"))
        bench.run("norm_gated_linear", (x, norm, w, None), (bench.output(2, 8),), spec)
    bench.info = usual


def record_latent(bench: Bench, rng: np.random.Generator, formats: Sequence[str]) -> None:
    """For one row, whose keys are dealt to several workgroups, and for many."""
    spec = MlaSpec(2, 4, 4, 4, 256, 1.0)
    cache = bench.store_of("latent", (np.zeros((4, 260), np.float32),))
    for rows in (1, 600):
        bench.plan(PlanKey(rows, 1, 1024, "none"), pages=300)
        latent, turned = (bench.input(np.ones((rows, n), np.float32)) for n in (256, 4))
        bench.run("latent_append", (latent, turned, cache))
        q, out = bench.input(np.ones((rows, 16), np.float32)), bench.output(rows, 8)
        for format in formats if rows == 1 else formats[-1:]:
            kv_b = bench.matrix((format, blocks(rng, format)), columns=256)
            bench.run("attend_latent", (q, kv_b, cache, None), (out,), spec)
    bench.plan(PlanKey(1, 1, 1024, "none"), pages=300)
    x, table = bench.input(np.ones((1, 16), np.float32)), bench.vector(np.ones((4, 16), np.float32))
    index = bench.store_of("index", (np.zeros((4, 16), np.float32),) * 3)
    bench.run("index_append", (x, index, x, table))
    bench.run("select", (x, x, index), (bench.output(1, 11),), SelectSpec(1, 16, 8, 4, tail=True))


def record_experts(bench: Bench, rng: np.random.Generator, format: str) -> None:
    logits = bench.input(np.ones((1, 8), np.float32))
    for groups in (1, 4):
        route = RouteSpec("softmax_of_chosen", 2, groups=groups)
        bench.run("route", (logits, None), bench.parts(1, (2, 2)), route)
    bench.carry("token", np.zeros(4, np.int32))
    table = bench.vector(np.ones(16, np.float32), "table")
    routed = bench.parts(1, (2, 2))
    bench.run("route_by_token", (logits, table), routed, RouteSpec("sigmoid", 2))
    x = bench.input(np.ones((1, 256), np.float32))
    gate_up, down = (
        bench.matrix((format, blocks(rng, format, rows)), columns=256) for rows in (1024, 512)
    )
    spec = ExpertsSpec(2, 256, GatedSpec("swiglu_oai", 7.0))
    for tokens in (1, 2, 5, 40):  # one by one, and sorted into tiles of each size
        bench.plan(PlanKey(tokens, 1, 64, "none"))
        x = bench.input(np.ones((tokens, 256), np.float32))
        routed = bench.parts(tokens, (2, 2))
        operands = (x, *routed, gate_up, down, None, None)
        bench.run("experts", operands, (bench.output(tokens, 256),), spec)
    bench.plan(PlanKey(1, 1, 64, "token"))


def record_recurrent(bench: Bench) -> None:
    """KDA, and hyper-connections."""
    bench.plan(PlanKey(2, 1, 64, "token"))
    vector = bench.vector(np.ones(32, np.float32), "ones")
    x, y, gates = (bench.input(np.ones((2, width), np.float32)) for width in (16, 16, 2))
    planes = bench.store_of("state", (np.zeros((2, 2, 8, 8), np.float32),), group="state")
    bench.run("conv", (x, vector, planes), (bench.output(2, 16),), ConvSpec(32))
    bench.run("decay", (x, vector, vector), (bench.output(2, 16),), DecaySpec(2, 8))
    bench.run("delta", (x, x, x, y, gates, planes), (bench.output(2, 16),), DeltaSpec(2, 8))
    w = bench.vector(np.ones(8, np.float32), "w")
    bench.run("gated_norm", (x, y, w), (bench.output(2, 16),), RmsNormSpec(1e-5))
    spec = HyperSpec(4, 1e-6, 1e-5, 20)
    bench.run("hc_start", (x,), (bench.output(2, 64),), spec)
    bench.run("hc_mean", (x,), (bench.output(2, 4),), spec)
    bench.run("hc_split", (x, vector, vector, vector), bench.parts(2, (4, 4, 16)), spec)
    bench.run("hc_head", (x, vector, vector, vector), (bench.output(2, 4),), spec)
    bench.run("hc_join", (gates, y, gates, x), (bench.output(2, 16),))
    bench.plan(PlanKey(20, 1, 64, "token"))  # enough for chunks
    x, gates = (bench.input(np.ones((20, width), np.float32)) for width in (16, 2))
    bench.run("delta", (x, x, x, x, gates, planes), (bench.output(20, 16),), DeltaSpec(2, 8))
    bench.plan(PlanKey(1, 1, 64, "token"))


def record_compressed(bench: Bench, rng: np.random.Generator, format: str) -> None:
    bench.plan(PlanKey(1, 1, 1024, "none"), pages=300)
    slots = np.zeros((4, 16), np.float32)
    raw, entries = bench.store_of("raw", (slots,)), bench.store_of("entries", (slots,) * 3)
    x, vector = bench.input(np.ones((1, 16), np.float32)), bench.vector(np.ones(256, np.float32))
    bench.run("unit_norm", (x,), (bench.output(1, 16),), UnitNormSpec(8, 1e-5))
    kv_gate = bench.parts(1, (16, 16))
    compressor = CompressorSpec(4, 8, True, 4, 1e-5)
    bench.run("compress_append", (*kv_gate, entries, *[vector] * 3), (), compressor)
    chosen = bench.output(1, 5)
    index = SelectEntriesSpec(SelectSpec(4, 4, 5), 4)
    bench.run("select_entries", (x, x, entries), (chosen,), index)
    heads, out = CompressedSpec(1, 16, 8, 4), bench.output(1, 16, guard=4)
    bench.run("attend_compressed", (x, raw, vector, entries, chosen), (out,), heads)
    for tokens in (1, 12):
        wide = bench.input(np.ones((tokens, 512), np.float32))
        w = bench.matrix((format, blocks(rng, format)), columns=256)
        bench.plan(PlanKey(tokens, 1, 64, "none"))
        outs = (bench.output(tokens, 16),)
        bench.run("grouped_linear", (wide, w), outs, GroupedLinearSpec(2))
    bench.plan(PlanKey(1, 1, 64, "token"))


@pytest.fixture(scope="module")
def compiler(playwright: Playwright, chromium_path: Path) -> Iterator[Any]:
    browser = playwright.chromium.launch(executable_path=str(chromium_path), args=ARGS)
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    page.goto("https://localhost/")  # navigator.gpu needs a secure context
    yield lambda kernels: page.evaluate(COMPILE, kernels)
    browser.close()


@pytest.mark.parametrize(("guise", "formats"), [("gpu", tuple(FORMATS)), ("gpu-plain", ("q4_1",))])
def test_kernels_compile(
    compiler: Any, rng: np.random.Generator, guise: str, formats: Sequence[str]
) -> None:
    collector = Collector()
    info = replace(INFO, **GUISES[guise])
    record_ops(Bench(collector, info), rng, formats)  # type: ignore[arg-type]
    collector.kernels[copy_kernel()] = None
    preamble = "enable subgroups;\n" if "subgroups" in info.features else ""
    kernels = [
        {
            "name": kernel.name,
            "code": preamble + kernel.wgsl,
            "constants": dict(kernel.constants),
            "entry": kernel.entry,
            "whole": ALL_TESTS or i % 6 == 0,
        }
        for i, kernel in enumerate(collector.kernels)
    ]

    assert len(kernels) > 18
    assert compiler(kernels) == []
