"""Attention of one device over long contexts in several settings: checked, then timed.

Each layer has a cache of its own, so that a GPU's L2 holds none of it. A figure is the time of all
layers, by timestamps of the device, over their number; every dispatch waits for the one before, as
in a round. The share is of the rate at which a WGSL kernel copies (bytes read and written).

    python -m benchmarks.attention_variants --out attention.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.stopwatch import Stopwatch
from tests.kernel import bench as workbench
from tests.kernel.bench import Bench
from zllm.attention import gqa
from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op, PlanKey
from zllm.backend.webgpu import attention
from zllm.backend.webgpu.bandwidth import copy_bandwidth
from zllm.backend.webgpu.device import Dispatch
from zllm.backend.webgpu.launch import lower
from zllm.backend.webgpu.store import Dtype
from zllm.backend.webgpu.wgpu_device import WgpuDevice
from zllm.backend.webgpu.wgpu_timing import open_timing_device

SHAPES = {
    "8b": GqaSpec(32, 8, 128, 128**-0.5, 128),
    "smollm2": GqaSpec(9, 3, 64, 64**-0.5, 64),
    "wide": GqaSpec(64, 8, 64, 64**-0.5, 64),
}
BUCKETS = (256, 1024, 4096, 16384, 65536)  # of plans
PAGE_SLOTS = 16
TOLERANCE = 2e-5
CACHED_BYTES, MOST_LAYERS = 256 << 20, 32  # small caches need more layers to leave an L2

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    shape: str
    length: int  # positions of each sequence, the new rows included
    seqs: int = 1
    rows: int = 1  # new ones of each sequence; 1: decode
    dtype: Dtype = "f16"
    threads: int = attention.SPLIT_THREADS
    groups: int = attention.FULL_GROUPS

    @property
    def spec(self) -> GqaSpec:
        return SHAPES[self.shape]

    @property
    def kv_bytes(self) -> int:
        numbers = 2 * self.spec.kv_heads * self.spec.head_size * self.length * self.seqs
        return numbers * (2 if self.dtype == "f16" else 4)

    @property
    def flops(self) -> int:
        """Of scores and sums, what causality hides left out."""
        seen = self.rows * (2 * self.length - self.rows + 1) // 2
        return 4 * self.seqs * seen * self.spec.heads * self.spec.head_size


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        for length in (128, 1000, 8192):
            yield Case(shape, length)
        yield Case(shape, 8192, dtype="f32")
        yield Case(shape, 2048, seqs=8)
        for threads, groups in ((128, 264), (128, 1024), (256, 512)):
            yield Case(shape, 8192, threads=threads, groups=groups)
    for shape in ("8b", "smollm2"):
        for rows, length in ((512, 512), (512, 2048), (16, 8192), (64, 8192), (512, 8192)):
            yield Case(shape, length, rows=rows)


class Runner:
    def __init__(self, device: WgpuDevice, layers: int, least_s: float) -> None:
        self.device, self.layers, self.least_s = device, layers, least_s
        self.watch = Stopwatch(device)
        self.random = np.random.default_rng(11)

    def run(self, case: Case) -> Json:
        attention.SPLIT_THREADS, attention.SPLIT_TILE = case.threads, case.threads // 2
        attention.FULL_GROUPS = case.groups
        bench = Bench(self.device, self.device.info)
        made: list[Any] = []
        allocate = bench.buffer

        def buffer(data: Any) -> Any:
            made.append(allocate(data))
            return made[-1]

        bench.buffer = buffer  # type: ignore[method-assign]
        spec, total = case.spec, case.seqs * case.rows
        pages = -(-case.length // PAGE_SLOTS)
        context = next(size for size in BUCKETS if size >= case.length)
        entries = -(-context // PAGE_SLOTS)
        table = np.zeros((case.seqs, entries), np.int32)
        order = 1 + self.random.permutation(case.seqs * pages)
        table[:, :pages] = order.reshape(case.seqs, pages)
        first = case.length - case.rows
        bench.plan(
            PlanKey(total, case.seqs, context, "none"),
            pages=1 + case.seqs * pages,
            seq=np.repeat(np.arange(case.seqs), case.rows),
            position=np.tile(np.arange(first, case.length), case.seqs),
            full_table=table,
        )
        slots = (1 + case.seqs * pages) * PAGE_SLOTS
        kv = self.random.standard_normal((2, slots, spec.kv_heads, spec.head_size), np.float32)
        kv = kv.astype(np.float16 if case.dtype == "f16" else np.float32)
        q = self.random.standard_normal((total, spec.heads * spec.head_size), np.float32)
        query, out = bench.input(q), bench.output(total, q.shape[1], guard=4)
        bench.step = bench.buffer(bench._step())
        dispatches: list[Dispatch] = []
        layers = min(MOST_LAYERS, max(self.layers, CACHED_BYTES // case.kv_bytes))
        for layer in range(layers):
            cache = bench.store_of(f"kv{layer}", tuple(kv), dtype=case.dtype)
            dispatches += lower(Op("attend", (query, cache), (out,), spec), bench)
        each = len(dispatches) // layers
        took = self.watch.paced(dispatches, self.least_s) * each
        error = self._error(case, q, kv.astype(np.float32), table, bench.values(out))
        for held in made:
            self.device.destroy(held)
        return {"seconds": took, "dispatches": each, "error": error}

    def _error(self, case: Case, q: Any, kv: Any, table: Any, got: Any) -> float:
        """Of the first, a middle and the last row of the last sequence."""
        spec, seq = case.spec, case.seqs - 1
        p = np.arange(case.length)
        own = kv[:, table[seq, p // PAGE_SLOTS] * PAGE_SLOTS + p % PAGE_SLOTS]
        rows = np.array(sorted({0, case.rows // 2, case.rows - 1}))
        visible = p <= (case.length - case.rows + rows)[:, None]
        at = seq * case.rows + rows
        heads = q[at].reshape(len(rows), spec.heads, spec.head_size)
        k, v = own.transpose(0, 2, 1, 3)
        expected = gqa.attend(heads, k, v, visible, spec).reshape(len(rows), -1)
        return float(np.abs(got[at] - expected).max() / np.abs(expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=8, help="at least")
    parser.add_argument("--least-ms", type=float, default=10, help="of a measurement")
    parser.add_argument("--only", default="", help="shapes, comma-separated")
    parser.add_argument("--longest", type=int, default=8192, help="skip longer contexts")
    args = parser.parse_args()
    workbench.PAGE_SLOTS = PAGE_SLOTS
    device = open_timing_device()
    rate = copy_bandwidth(device)
    runner = Runner(device, args.layers, args.least_ms / 1e3)
    report: Json = {
        **describe(),
        "adapter": device.info.name,
        "copy_bytes_per_s": rate,
        "cases": [],
    }
    print(f"{device.info.name}: copies {rate / 1e9:.0f} GB/s")
    chosen = args.only.split(",") if args.only else list(SHAPES)
    for case in cases():
        if case.shape not in chosen or case.length > args.longest:
            continue
        found = runner.run(case)
        share = case.kv_bytes / found["seconds"] / rate
        found |= {
            "shape": case.shape, "length": case.length, "seqs": case.seqs, "rows": case.rows,
            "dtype": case.dtype, "threads": case.threads, "groups": case.groups,
            "share": share, "tflop_s": case.flops / found["seconds"] / 1e12,
        }  # fmt: skip
        report["cases"].append(found)
        wrong = "" if found["error"] <= TOLERANCE else f"  WRONG by {found['error']:.1e}"
        print(
            f"{case.shape:8} {case.length:6} × {case.seqs} rows {case.rows:4} {case.dtype} "
            f"threads {case.threads} groups {case.groups:4}: {found['seconds'] * 1e6:9.1f} µs "
            f"a layer, share {share:5.2f}, {found['tflop_s']:7.3f} TFLOP/s{wrong}",
            flush=True,
        )
        if args.out:
            args.out.write_text(json.dumps(report, indent=1))
    device.close()


if __name__ == "__main__":
    main()
