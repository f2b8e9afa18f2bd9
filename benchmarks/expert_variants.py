"""Experts of one device, few rows to many, one by one or sorted into tiles: checked, then timed.

Rows choose at random, other experts in each repetition, so that a GPU's L2 does not hold them. A
figure is the wall clock from the submit of all repetitions to their end, less that of an empty
program, over their number. The share is of the rate at which a WGSL kernel copies: the bytes of the
experts that any row chose, once.

    python -m benchmarks.expert_variants --out experts.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from tests.kernel.bench import Bench, random_blocks
from zllm.activation import GatedSpec
from zllm.backend.contract import Op, PlanKey, Weight
from zllm.backend.webgpu import experts as launchers
from zllm.backend.webgpu.bandwidth import copy_bandwidth
from zllm.backend.webgpu.device import Dispatch
from zllm.backend.webgpu.launch import lower
from zllm.backend.webgpu.upload import upload_matrix
from zllm.backend.webgpu.wgpu_device import WgpuDevice, open_device
from zllm.moe.experts import ExpertsSpec, experts
from zllm.quant import formats
from zllm.weight.linear_weight import RepeatedRows, stored

# experts, chosen, D, F
SHAPES = {
    "glm-5.3-flash": (288, 8, 4096, 2048),
    "qwen3-30b": (128, 8, 2048, 768),
    "gpt-oss-20b": (32, 4, 2880, 2880),
    "tiny": (12, 2, 64, 64),
}
ROWS = (1, 4, 8, 16, 64, 512)
NEVER = 1e9
WARM_S = 0.15
TILE_ROWS = 64  # of the random weights
TOLERANCE = 1e-5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    shape: str
    format: str
    rows: int
    way: str  # one-by-one, or pairs of a tile


def cases(shapes: Sequence[str], kinds: Sequence[str]) -> Iterator[Case]:
    for shape in shapes:
        count, chosen, _, _ = SHAPES[shape]
        for format in kinds:
            for rows in ROWS:
                yield Case(shape, format, rows, "one-by-one")
                if rows * chosen * 4 >= count:
                    for size in ("4", "8", "32"):
                        yield Case(shape, format, rows, size)


class Model:
    """One layer's weights, and what they are made of."""

    def __init__(self, device: WgpuDevice, shape: str, format: str) -> None:
        self.shape, self.format = shape, format
        self.count, self.chosen, self.width, self.inner = SHAPES[shape]
        self.spec = ExpertsSpec(self.count, self.inner, GatedSpec("silu"))
        random = np.random.default_rng(7)
        gate_up = (self.count * 2 * self.inner, self.width)
        down = (self.count * self.width, self.inner)
        self.tiles, self.banks = [], []
        for (rows, columns), own in ((gate_up, 2 * self.inner), (down, self.width)):
            tile = random_blocks(random, format, TILE_ROWS, columns)
            data = RepeatedRows(tile.tobytes(), 0, rows * tile.shape[1])
            weight = stored(format, (rows, columns), data)
            self.tiles.append(formats.decode(format, tile, columns))
            self.banks.append(upload_matrix(device, "experts", [weight], own))

    @property
    def expert_bytes(self) -> int:
        held = sum(bank.buffer.size_bytes for banks in self.banks for bank in banks)
        return held // self.count

    def destroy(self, device: WgpuDevice) -> None:
        for bank in (bank for banks in self.banks for bank in banks):
            device.destroy(bank.buffer)

    def expected(self, x: Any, routed: Any) -> Any:
        def product(tile: Any) -> Any:
            return lambda x, first, n: x @ tile[np.arange(first, first + n) % TILE_ROWS].T

        return experts(x, routed, *(product(tile) for tile in self.tiles), self.spec)


class Runner:
    def __init__(self, device: WgpuDevice, layers: int, repeats: int) -> None:
        self.device, self.layers, self.repeats = device, layers, repeats
        self.random = np.random.default_rng(11)
        self.idle = self.seconds([])

    def seconds(self, dispatches: Sequence[Dispatch]) -> float:
        """The best of several runs, after a while of the same: an idle GPU's clock falls."""
        program = self.device.program(dispatches)
        times = []
        begin = time.perf_counter()
        while time.perf_counter() < begin + WARM_S:
            program.submit(memoryview(b"")).wait()
        for _ in range(self.repeats):
            start = time.perf_counter()
            program.submit(memoryview(b"")).wait()
            times.append(time.perf_counter() - start)
        return min(times)

    def run(self, case: Case, model: Model) -> Json:
        launchers.SORTED_PAIRS = NEVER if case.way == "one-by-one" else 0.0
        size = 0 if case.way == "one-by-one" else int(case.way)
        launchers.tile_size = lambda average: size
        bench = Bench(self.device, self.device.info)
        held = self.device.held_bytes
        made: list[Any] = []
        allocate = bench.buffer

        def buffer(data: Any) -> Any:
            made.append(allocate(data))
            return made[-1]

        bench.buffer = buffer  # type: ignore[method-assign]
        bench.plan(PlanKey(case.rows, 1, 1024, "none"))
        weights = [Weight(f"w{i}", (0, 0), ()) for i in range(2)]
        for weight, banks in zip(weights, model.banks, strict=True):
            bench._banks[weight.name] = banks
        x = self.random.standard_normal((case.rows, model.width), np.float32)
        bench.step = bench.buffer(bench._step())
        source = bench.input(x)
        dispatches: list[Dispatch] = []
        distinct = 0
        for _ in range(self.layers):
            ids, shares = self._routes(case.rows, model)
            distinct += len(np.unique(ids))
            routed = bench.parts(case.rows, (model.chosen, model.chosen))
            bench.fill(routed, np.concatenate([ids.view(np.float32), shares], axis=1))
            out = bench.output(case.rows, model.width, guard=4)
            op = Op("experts", (source, *routed, *weights, None, None), (out,), model.spec)
            dispatches += lower(op, bench)
        took = (self.seconds(dispatches) - self.idle) / self.layers
        some = slice(0, min(case.rows, 4))
        expected = model.expected(x[some], (ids[some], shares[some]))
        error = np.abs(bench.values(out)[some] - expected).max() / np.abs(expected).max()
        for one in made:
            self.device.destroy(one)
        assert self.device.held_bytes <= held
        return {
            "seconds": took,
            "bytes": model.expert_bytes * distinct // self.layers,
            "flops": 6 * case.rows * model.chosen * model.width * model.inner,
            "dispatches": len(dispatches) // self.layers,
            "error": float(error),
        }

    def _routes(self, rows: int, model: Model) -> tuple[Any, Any]:
        order = np.argsort(self.random.random((rows, model.count)), axis=1)
        ids = np.sort(order[:, : model.chosen], axis=1).astype(np.int32)
        return ids, self.random.random(ids.shape, np.float32) + np.float32(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="glm-5.3-flash,qwen3-30b,gpt-oss-20b")
    parser.add_argument("--formats", default="q4_0,bf16")
    args = parser.parse_args()
    device = open_device()
    device.info = replace(device.info, software=False)  # a software adapter shows that it runs
    rate = copy_bandwidth(device)
    runner = Runner(device, args.layers, args.repeats)
    report: Json = {
        **describe(),
        "adapter": device.info.name,
        "copy_bytes_per_s": rate,
        "cases": [],
    }
    print(f"{device.info.name}: copies {rate / 1e9:.0f} GB/s")
    model: Model | None = None
    for case in cases(args.only.split(","), args.formats.split(",")):
        if model is None or (model.shape, model.format) != (case.shape, case.format):
            if model is not None:
                model.destroy(device)
            model = Model(device, case.shape, case.format)
        found = runner.run(case, model)
        share = found["bytes"] / found["seconds"] / rate
        tflops = found["flops"] / found["seconds"] / 1e12
        found |= {"shape": case.shape, "format": case.format, "rows": case.rows, "way": case.way}
        report["cases"].append(found | {"share": share, "tflop_s": tflops})
        wrong = "" if found["error"] <= TOLERANCE else f"  WRONG by {found['error']:.1e}"
        print(
            f"{case.shape:14} {case.format:5} rows {case.rows:4} {case.way:10}: "
            f"{found['seconds'] * 1e6:9.1f} µs, share {share:5.2f}, {tflops:7.3f} TFLOP/s{wrong}",
            flush=True,
        )
        if args.out:
            args.out.write_text(json.dumps(report, indent=1))
    device.close()


if __name__ == "__main__":
    main()
