"""Matrix products of one device in many settings: checked, then timed, beside a copy kernel.

Weights rotate through more memory than a GPU's L2 holds. Each figure is GPU time, of a pass in
which every dispatch waits for the one before, as in a round; other work keeps the clock up before
it. The share is of the rate at which a WGSL kernel copies (bytes read and written).

At the end: what the shapes asked for take in a round of a model like Llama 3 8B with each setting
that was timed for all of them, and the fastest as a line of `zllm.backend.webgpu.tuning`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product as every
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from benchmarks.machine import describe
from benchmarks.stopwatch import Stopwatch, TimedDevice, copy_rate, empty_seconds
from tests.kernel.bench import random_blocks
from zllm.activation import GatedSpec
from zllm.backend.webgpu import wgpu_module
from zllm.backend.webgpu.backend import adapter_of
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch
from zllm.backend.webgpu.launch import resident
from zllm.backend.webgpu.lowering import Bank, View
from zllm.backend.webgpu.product import FOLDED_TOKENS, Product, dispatches
from zllm.backend.webgpu.product_pairs import CODES, few_of
from zllm.backend.webgpu.tune import WORTH
from zllm.backend.webgpu.tuned import FILE, PAIRS, keep
from zllm.backend.webgpu.tuning import Choice, Few, Tuning
from zllm.backend.webgpu.wgpu_device import WgpuDevice, choose_adapter
from zllm.fetch.store import cache_dir
from zllm.norm import RmsNormSpec
from zllm.quant import formats


@dataclass(frozen=True)
class Shape:
    name: str
    rows: int  # of the matrix
    columns: int
    normed: bool = False
    gated: bool = False


WIDE = (
    Shape("qkv", 6144, 4096, normed=True),
    Shape("o", 4096, 4096),
    Shape("gate_up", 28672, 4096, normed=True, gated=True),
    Shape("down", 4096, 14336),
    Shape("head", 128256, 4096, normed=True),
)
NARROW = (
    Shape("s_qkv", 960, 576, normed=True),
    Shape("s_o", 576, 576),
    Shape("s_gate_up", 3072, 576, normed=True, gated=True),
    Shape("s_down", 576, 1536),
    Shape("s_head", 49152, 576, normed=True),
)
SHAPES = {shape.name: shape for shape in WIDE + NARROW}
LAYERS = 32
TIMES = {shape.name: LAYERS for shape in WIDE} | {"head": 1}  # in a round
# Of the largest result; product_pairs rounds x to 16 bits a block.
TOLERANCE = {"pairs": 5e-4}
HOPELESS = 1.7  # times the fastest of the first shape: not timed for the others


class Workshop:
    """Banks and buffers on a device."""

    def __init__(self, device: WgpuDevice, *, rotated_bytes: int) -> None:
        self.device = device
        self.random = np.random.default_rng(7)
        self._rotated_bytes = rotated_bytes
        self._scratch: list[Buffer] = []

    def buffer(self, data: np.ndarray[Any, Any]) -> Buffer:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer = self.device.buffer(flat.size, "bench")
        self.device.write(buffer, 0, flat.data)
        return buffer

    def bank(self, format: str, encoded: np.ndarray[Any, Any], rows: int, columns: int) -> Bank:
        """Encoded rows, repeated as far as needed, in their resident form."""
        form = resident(format, columns, self.device.info)
        size = -(-encoded.shape[1] // 4) * 4
        raw = Bank(self.device.buffer(size * rows, "raw"), format, 0, rows, columns, size // 4)
        padded = np.zeros((len(encoded), size), np.uint8)
        padded[:, : encoded.shape[1]] = encoded
        for first in range(0, rows, len(padded)):
            part = padded[: rows - first]
            self.device.write(raw.buffer, first * size, part.reshape(-1).data)
        if form.repack is None:
            return raw
        held = self.device.buffer(4 * rows * form.row_words, "bank")
        bank = Bank(held, form.format, 0, rows, columns, form.row_words)
        self.device.program(form.repack(raw, bank)).submit(memoryview(b"")).wait()
        self.device.destroy(raw.buffer)
        return bank

    def rotated(self, format: str, shape: Shape) -> list[Bank]:
        encoded = random_blocks(self.random, format, 256, shape.columns)
        first = self.bank(format, encoded, shape.rows, shape.columns)
        size = first.buffer.size_bytes
        banks = [first]
        while size * len(banks) < self._rotated_bytes:
            copy = self.device.buffer(size, "bank")
            self.device.copy([(first.buffer, 0, copy, 0, size)])
            banks.append(replace(first, buffer=copy))
        return banks

    def product(self, shape: Shape, tokens: int, x: Any = None, norm: Any = None) -> Product:
        if x is None:
            x = self.random.standard_normal((tokens, shape.columns)).astype(np.float32)
            norm = self.random.standard_normal(shape.columns).astype(np.float32)
        width = shape.rows // 2 if shape.gated else shape.rows
        out = self.buffer(np.full(tokens * width, np.nan, np.float32))
        return Product(
            View(self.buffer(x), 0, shape.columns, tokens, shape.columns),
            View(out, 0, width, tokens, width),
            self.buffer(norm) if shape.normed and tokens <= FOLDED_TOKENS else None,
            RmsNormSpec(1e-5),
            gated=GatedSpec("silu") if shape.gated else None,
        )

    def dispatches(self, product: Product, bank: Bank, info: DeviceInfo) -> list[Dispatch]:
        """Some write what others read: all banks of a shape may share it."""
        at = 0

        def scratch(size_bytes: int) -> Buffer:
            nonlocal at
            at += 1
            if at > len(self._scratch) or self._scratch[at - 1].size_bytes < size_bytes:
                self._scratch.insert(at - 1, self.device.buffer(size_bytes, "scratch"))
            return self._scratch[at - 1]

        return dispatches(product, [bank], scratch, info)

    def free(self, product: Product, banks: Sequence[Bank]) -> None:
        for buffer in (product.x.buffer, product.out.buffer, product.norm):
            if buffer is not None:
                self.device.destroy(buffer)
        for bank in banks:
            self.device.destroy(bank.buffer)


def with_few(info: DeviceInfo, few: Few) -> DeviceInfo:
    choices = tuple(Choice("", tokens, few) for tokens in (1, 64))
    return replace(info, tuning=Tuning(choices, few_tokens=64, pair_tokens=64))


def few_variants(tokens: int, thin: bool) -> Iterator[Few]:
    if tokens > 16:
        yield from PAIRS
        return
    if tokens > 1 and thin:
        yield from PAIRS
        yield from (Few(128, 2, 16), Few(256, 4, 16))
        return
    rows_lanes = every((2, 4, 8), (8, 16, 32))
    if thin:
        rows_lanes = every((2, 4, 8), (16, 32))
    for (rows, lanes), threads in every(rows_lanes, (64, 128, 256)):
        yield Few(threads, rows, lanes)
    if tokens > 1:
        yield from PAIRS


def name_of(few: Few) -> str:
    return f"{few.kernel} {few.threads}x{few.rows}/{few.lanes}"


Variant = tuple[str, DeviceInfo, Few | None]


def variants(info: DeviceInfo, format: str, tokens: int, thin: bool) -> Iterator[Variant]:
    """The table as it is, first."""
    yield "default", info, None
    if tokens <= 64:
        for few in few_variants(tokens, thin):
            if few.kernel != "pairs" or format in CODES:
                yield name_of(few), with_few(info, few), few
    if tokens > 8:
        yield (
            "tile",
            replace(info, tuning=Tuning(few_tokens=0, pair_tokens=0, wide_tokens=1 << 20)),
            None,
        )
        yield "wide", replace(info, tuning=Tuning(few_tokens=0, pair_tokens=0, wide_tokens=1)), None


def check(shop: Workshop, info: DeviceInfo, format: str, tokens: int) -> float:
    """Worst error of the largest result, over shapes small and awkward."""
    worst = 0.0
    for shape in (
        Shape("plain", 150, 768, normed=True),
        Shape("gated", 142, 256, normed=True, gated=True),
    ):
        encoded = random_blocks(shop.random, format, shape.rows, shape.columns)
        bank = shop.bank(format, encoded, shape.rows, shape.columns)
        x = shop.random.standard_normal((tokens, shape.columns)).astype(np.float32)
        norm = shop.random.standard_normal(shape.columns).astype(np.float32)
        product = shop.product(shape, tokens, x, norm)
        ready = shop.dispatches(product, bank, info)
        shop.device.program(ready).submit(memoryview(b"")).wait()
        size = product.out.buffer.size_bytes
        got = np.frombuffer(shop.device.read(product.out.buffer, 0, size), np.float32)
        v = x.astype(np.float64)
        if tokens <= FOLDED_TOKENS:
            v = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * norm
        y = v @ formats.decode(format, encoded, shape.columns).astype(np.float64).T
        if shape.gated:
            gate, up = np.split(y, 2, axis=1)
            y = gate / (1 + np.exp(-gate)) * up
        error = np.abs(got.reshape(y.shape) - y).max() / np.abs(y).max()
        worst = max(worst, float(error) if np.isfinite(error) else np.inf)
        shop.free(product, [bank])
    return worst


def probe(device: WgpuDevice) -> dict[str, Any]:
    """What the adapter offers, and whether cooperative matrices can be had."""
    adapter = device.handle.adapter
    found: dict[str, Any] = {"features": sorted(adapter.features), "info": dict(adapter.info)}
    try:
        choose_adapter().request_device_sync(required_features=["cooperative-matrix"])
        found["cooperative-matrix"] = "granted"
    except (wgpu.GPUError, RuntimeError) as error:
        found["cooperative-matrix"] = str(error)[:300]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--formats", default="f16,q8_0,q4_0,q4_1,bf16")
    parser.add_argument("--shapes", default="o,gate_up")
    parser.add_argument("--tokens", default="1,8,512")
    parser.add_argument("--seconds", type=float, default=150.0, help="stop after so long")
    parser.add_argument("--least-ms", type=float, default=8.0, help="of one submit")
    parser.add_argument("--checks", type=int, help="1: bounds, 2: of loops (as in browsers)")
    parser.add_argument("--thin", action="store_true", help="fewer settings")
    parser.add_argument("--keep", action="store_true", help="the fastest, as `bench --tune` does")
    args = parser.parse_args()
    begun = time.perf_counter()
    device = TimedDevice(choose_adapter())
    watch = Stopwatch(device)
    info = replace(device.info, software=False)
    least_s = args.least_ms / 1e3
    small = device.info.software
    results: dict[str, Any] = {"machine": describe(), "adapter": device.info.name}
    results["probe"] = probe(device)
    print(results["probe"])
    rate = copy_rate(watch, (8 << 20) if small else (1 << 30), least_s)
    print(f"{device.info.name}: copies {rate / 1e12:.3f} TB/s")
    results["copy_bytes_per_s"] = rate
    results["empty_us"] = 1e6 * empty_seconds(watch, least_s)
    print(f"a dispatch that copies 16 bytes takes {results['empty_us']:.2f} us")
    if args.checks is not None:
        wgpu_module.CHECKS = args.checks
    shop = Workshop(device, rotated_bytes=(1 << 20) if small else (256 << 20))
    rows: list[dict[str, Any]] = []
    results["rows"] = rows
    found: list[Choice] = []
    for tokens, format in every(map(int, args.tokens.split(",")), args.formats.split(",")):
        right: dict[str, float] = {}
        for name in args.shapes.split(","):
            shape = SHAPES[name]
            if time.perf_counter() - begun > args.seconds:
                continue
            banks = shop.rotated(format, shape)
            product = shop.product(shape, tokens)
            for variant, tuned, few in variants(info, format, tokens, args.thin):
                if time.perf_counter() - begun > args.seconds:
                    break
                if few and hopeless(rows, format, tokens, variant):
                    continue
                if variant not in right:
                    right[variant] = check(shop, tuned, format, tokens)
                row = {"format": format, "tokens": tokens, "variant": variant, "shape": name}
                row |= {"few": few and asdict(few), "error": right[variant], "us": 1e9}
                rows.append(row)
                kernel = few_of(format, tokens, tuned).kernel
                if not right[variant] < TOLERANCE.get(kernel, 1e-4):
                    print("WRONG", format, tokens, variant, right[variant])
                    continue
                cycle = [call for bank in banks for call in shop.dispatches(product, bank, tuned)]
                took = watch.paced(cycle, least_s) * len(cycle) / len(banks)
                row |= {
                    "checks": wgpu_module.CHECKS,
                    "us": took * 1e6,
                    "share": banks[0].buffer.size_bytes / took / rate,
                    "tflops": 2 * shape.rows * shape.columns * tokens / took / 1e12,
                }
            table(rows, format, tokens, name)
            shop.free(product, banks)
        found += fastest(rows, format, tokens)
    print(f"{time.perf_counter() - begun:.0f} s, {len(rows)} figures")
    if args.keep and found:
        keep(cache_dir() / FILE, adapter_of(device.info), tuple(found))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def hopeless(rows: list[dict[str, Any]], format: str, tokens: int, variant: str) -> bool:
    """By the first shape."""
    same = [r for r in rows if (r["format"], r["tokens"]) == (format, tokens)]
    first = {r["variant"]: r["us"] for r in same if r["shape"] == same[0]["shape"]}
    return bool(variant in first and first[variant] > HOPELESS * min(first.values()))


def fastest(rows: list[dict[str, Any]], format: str, tokens: int) -> list[Choice]:
    """By the sum of a round's products; none where the table as it is is as fast."""
    same = [r for r in rows if (r["format"], r["tokens"]) == (format, tokens)]
    shapes = list(dict.fromkeys(r["shape"] for r in same))
    sums: dict[str, float] = {}
    for variant in dict.fromkeys(r["variant"] for r in same):
        mine = {r["shape"]: r["us"] for r in same if r["variant"] == variant}
        if len(mine) == len(shapes):
            sums[variant] = sum(us * TIMES.get(name, 1) for name, us in mine.items()) / 1e3
    best = sorted(sums, key=sums.__getitem__)
    line = " | ".join(f"{variant} {sums[variant]:.2f}" for variant in best)
    print(f"{format} x{tokens}, ms of {'+'.join(shapes)} in a round: {line}", flush=True)
    few = next((r["few"] for r in same if best and r["variant"] == best[0]), None)
    if few is None or sums[best[0]] > WORTH * sums.get("default", 1e9):
        return []
    choice = Choice(format, tokens, Few(**few))
    sizes = f"{choice.few.threads}, {choice.few.rows}, {choice.few.lanes}"
    print(f'Choice("{format}", 1 << 30, Few({sizes}, "{choice.few.kernel}")),', flush=True)
    return [choice]


def table(rows: list[dict[str, Any]], format: str, tokens: int, shape: str) -> None:
    found = [r for r in rows if (r["format"], r["tokens"], r["shape"]) == (format, tokens, shape)]
    found.sort(key=lambda r: float(r["us"]))
    line = " | ".join(
        f"{r['variant']} {r['us']:.1f}us {100 * r.get('share', 0):.0f}% {r.get('tflops', 0):.1f}T"
        for r in found[:7] + found[-1:]
    )
    print(f"{format} x{tokens} {shape}: {line}", flush=True)


if __name__ == "__main__":
    main()
