"""Latent attention and the indexer's choice of one device at GLM-5.3-Flash's sizes: checked, timed.

Each layer has a matrix and a cache of its own. A figure is the sum of its dispatches by the
device's clock, over the layers, after 0.1 s of other work. The share is of the rate at which a WGSL
kernel copies; a decode reads the matrix once and each row's latents once. Decodes are measured with
either shape of a GPU's attention.

    python -m benchmarks.latent_ops --out latent.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe
from benchmarks.recurrent_ops import seconds
from tests.kernel.bench import PAGE_SLOTS, Bench, random_blocks
from zllm.attention import dsa, kpool, mla
from zllm.attention.dsa import SelectSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Op, PlanKey
from zllm.backend.webgpu import latent
from zllm.backend.webgpu.bandwidth import busy_program, copy_bandwidth
from zllm.backend.webgpu.launch import lower
from zllm.backend.webgpu.wgpu_timing import TimingDevice, open_timing_device
from zllm.quant import formats

F32 = NDArray[np.float32]
Json = dict[str, Any]

MLA = MlaSpec(heads=64, nope=256, rotated=0, value=256, rank=512, scale=1 / 16)
HEADS, SIZE, TOP_K = 32, 128, 2048
SHAPES = {"few keys": 1 << 30, "many keys": 0}  # up to how many keys it is latent_attend_few
TOLERANCE = {
    "attend_latent": 1e-4,
    "select": 2e-3,  # of the choice: scores that differ by their rounding alone may change places
}


@dataclass(frozen=True)
class Case:
    """The last rows of one sequence, or of several as long as each other."""

    op: str
    rows: int
    seqs: int
    context: int
    sparse: bool = False  # attend_latent: over TOP_K chosen positions
    pool: int = 1  # select

    @property
    def title(self) -> str:
        kind = " chosen" if self.sparse else f" pools of {self.pool}" if self.pool > 1 else ""
        return f"{self.op}{kind}, rows {self.rows} of {self.seqs}, context {self.context}"


CASES = [
    Case("attend_latent", 1, 1, 8192, True),
    Case("attend_latent", 8, 8, 64),
    Case("attend_latent", 8, 8, 4096, True),
    *(Case("attend_latent", 1, 1, context) for context in (64, 512, 2048, 8192, 32768)),
    *(Case("attend_latent", 512, 1, context) for context in (512, 2048)),
    Case("attend_latent", 512, 1, 8192, True),
    *(Case("select", 1, 1, context) for context in (8192, 32768, 131072)),
    *(Case("select", 1, 1, context, pool=4) for context in (8192, 131072)),
    Case("select", 512, 1, 8192),
]


@dataclass(frozen=True)
class Timed:
    ops: list[Op]  # one a layer
    moved: int  # bytes of one
    got: Callable[[], NDArray[Any]]  # of the last row
    expected: NDArray[Any]


def planned(device: TimingDevice, case: Case) -> tuple[Bench, NDArray[np.int32]]:
    """The bench, and each row's position."""
    bench = Bench(device, device.info)
    each = case.rows // case.seqs
    positions = np.tile(np.arange(case.context - each, case.context), case.seqs).astype(np.int32)
    pages = case.context // PAGE_SLOTS
    bench.plan(
        PlanKey(case.rows, case.seqs, case.context, "none"),
        pages=case.seqs * pages + 1,
        seq=np.repeat(np.arange(case.seqs), each),
        position=positions,
        full_table=1 + np.arange(case.seqs * pages),
    )
    bench.step = bench.buffer(bench._step())
    return bench, positions


def attend(bench: Bench, case: Case, positions: NDArray[np.int32], layers: int, kind: str) -> Timed:
    random = np.random.default_rng(3)
    rows = MLA.heads * (MLA.nope + MLA.value)
    stored = random_blocks(random, kind, rows, MLA.rank)
    slots = (case.seqs * case.context // PAGE_SLOTS + 1) * PAGE_SLOTS
    latents = random.standard_normal((slots, MLA.rank), np.float32)
    q = random.standard_normal((case.rows, MLA.heads * MLA.nope), np.float32) * np.float32(0.02)
    out, flat, chosen = bench.output(case.rows, MLA.heads * MLA.value), bench.input(q), None
    seen = np.arange(case.context)
    if case.sparse:
        seen = np.sort(random.choice(case.context - case.rows, TOP_K, replace=False))
        ids = np.tile(seen.astype(np.int32), (case.rows, 1))
        chosen = bench.input(ids.view(np.float32))
    ops = []
    for layer in range(layers):
        kv_b = bench.matrix((kind, stored), columns=MLA.rank)
        cache = bench.store_of(f"latent {layer}", (latents,))
        ops.append(Op("attend_latent", (flat, kv_b, cache, chosen), (out,), MLA))
    own = latents[PAGE_SLOTS + (case.seqs - 1) * case.context :][seen]
    weights = formats.decode(kind, stored, MLA.rank)
    row = q[-1].reshape(1, MLA.heads, -1)
    expected = mla.attend_absorbed(row, own, weights, None, MLA).reshape(-1)
    moved = stored.nbytes + 4 * case.seqs * len(seen) * MLA.rank
    return Timed(ops, moved, lambda: bench.values(out)[-1], expected)


def select(bench: Bench, case: Case, positions: NDArray[np.int32], layers: int, _: str) -> Timed:
    random = np.random.default_rng(3)
    spec = SelectSpec(HEADS, SIZE, TOP_K, case.pool, tail=case.pool > 1)
    keys = random.standard_normal((case.context + PAGE_SLOTS, SIZE), np.float32)
    q = random.standard_normal((case.rows, HEADS * SIZE), np.float32)
    head_weights = random.standard_normal((case.rows, HEADS), np.float32)
    out = bench.output(case.rows, spec.width)
    flat = bench.input(q), bench.input(head_weights)
    ops = []
    for layer in range(layers):
        arrays = (keys,) if case.pool == 1 else (keys[:1], keys[:1], keys)
        ops.append(Op("select", (*flat, bench.store_of(f"index {layer}", arrays)), (out,), spec))
    own = keys[PAGE_SLOTS:][case.pool - 1 :: case.pool]
    choose = dsa.select if case.pool == 1 else kpool.select
    expected = choose(q[-1:].reshape(1, HEADS, SIZE), head_weights[-1:], own, positions[-1:], spec)
    moved = 4 * SIZE * len(own) + 8 * case.rows * len(own)
    return Timed(ops, moved, lambda: bench.values(out)[-1].view(np.int32), expected[0])


def measured(device: TimingDevice, case: Case, layers: int, repeats: int, kind: str) -> Json:
    bench, positions = planned(device, case)
    made: list[Any] = [bench.step]
    allocate = bench.buffer

    def buffer(data: Any) -> Any:
        made.append(allocate(data))
        return made[-1]

    bench.buffer = buffer  # type: ignore[method-assign]
    run = attend if case.op == "attend_latent" else select
    timed = run(bench, case, positions, layers, kind)
    dispatches = [d for op in timed.ops for d in lower(op, bench)]
    each = len(dispatches) // layers
    parts = np.reshape(seconds(device, dispatches, repeats), (layers, each)).mean(axis=0)
    got = timed.got()
    if case.op == "select":
        error = 1 - len(np.intersect1d(got, timed.expected)) / len(np.unique(timed.expected))
    else:
        error = float(np.abs(got - timed.expected).max() / np.abs(timed.expected).max())
    for held in made:
        device.destroy(held)
    return {
        "case": case.title, "seconds": float(parts.sum()), "bytes": timed.moved,
        "parts": parts.tolist(), "error": error,
    }  # fmt: skip


def shapes(case: Case, device: TimingDevice) -> list[str]:
    either = case.op == "attend_latent" and case.rows <= 8 and not device.info.software
    return list(SHAPES) if either else ["many keys"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--format", default="bf16", help="of the matrix that unfolds latents")
    parser.add_argument("--only", default="", help="cases whose title contains it")
    args = parser.parse_args()
    device = open_timing_device()
    rate = copy_bandwidth(device)
    if not device.info.software:
        device.busy = busy_program(device)
    report: Json = {**describe(), "adapter": device.info.name, "copy_bytes_per_s": rate}
    report["cases"] = []
    print(f"{device.info.name}: copies {rate / 1e9:.0f} GB/s")
    for case in CASES:
        if args.only not in case.title:
            continue
        for shape in shapes(case, device):
            usual, latent.MOST_FEW_KEYS = latent.MOST_FEW_KEYS, SHAPES[shape]
            found = measured(device, case, args.layers, args.repeats, args.format)
            latent.MOST_FEW_KEYS = usual
            found |= {"shape": shape, "share": found["bytes"] / found["seconds"] / rate}
            report["cases"].append(found)
            right = found["error"] <= TOLERANCE[case.op]
            wrong = "" if right else f"  WRONG by {found['error']:.1e}"
            parts = " + ".join(f"{part * 1e6:.1f}" for part in found["parts"])
            print(
                f"{found['case']:50} {found['seconds'] * 1e6:9.1f} µs a layer ({parts}), "
                f"share {found['share']:5.2f}{wrong} {shape}",
                flush=True,
            )
            if args.out:
                args.out.write_text(json.dumps(report, indent=1))
    device.close()


if __name__ == "__main__":
    main()
