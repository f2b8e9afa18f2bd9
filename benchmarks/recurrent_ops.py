"""KDA and hyper-connections of one device at GLM-5.3-Flash's sizes: checked, then timed op by op.

Each layer has weights and states of its own, so that a GPU's L2 holds few of them. A figure is the
sum of its dispatches by the device's clock, over the layers, after 0.1 s of other work. The share
is of the rate at which a WGSL kernel copies (bytes read and written). Where the delta rule takes
chunks its other forms are measured as well.

    python -m benchmarks.recurrent_ops --out recurrent.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe
from tests.kernel.bench import Bench
from zllm import hyper_connection
from zllm.attention import kda
from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
from zllm.backend.contract import Op, PlanKey, Value
from zllm.backend.webgpu import kda as launchers
from zllm.backend.webgpu.bandwidth import busy_program, copy_bandwidth
from zllm.backend.webgpu.device import DeviceInfo, Dispatch
from zllm.backend.webgpu.launch import lower
from zllm.backend.webgpu.wgpu_timing import TimingDevice, open_timing_device
from zllm.hyper_connection import HyperSpec
from zllm.norm import RmsNormSpec

F32 = NDArray[np.float32]
Json = dict[str, Any]

HEADS, SIZE, TAPS, WIDTH = 64, 128, 4, 4096
STREAMS = HyperSpec(4, 1e-6, 1e-5, 20)
ROUNDS = [(1, 1), (8, 8), (64, 64), (16, 1), (64, 1), (512, 1), (512, 4)]  # rows, sequences
TOLERANCE = 2e-5


@dataclass
class Round:
    """A bench planned for a round of sequences of equal lengths that go on."""

    bench: Bench
    rows: int
    seqs: int
    random: np.random.Generator

    def numbers(self, *shape: int) -> F32:
        return self.random.standard_normal(shape, np.float32)

    def input(self, columns: int) -> tuple[F32, Value]:
        x = self.numbers(self.rows, columns)
        return x, self.bench.input(x)

    def state(self, name: str, *shape: int) -> tuple[F32, Any]:
        held = self.numbers(2 * self.seqs + 1, *shape)
        return held, self.bench.store_of(name, (held,), group="state")

    @property
    def last(self) -> slice:
        """Rows of the last sequence, whose results are checked."""
        return slice(self.rows - self.rows // self.seqs, self.rows)


@dataclass(frozen=True)
class Timed:
    ops: list[Op]  # one a layer
    moved: int  # bytes of one
    got: Callable[[], F32]
    expected: F32


def conv(r: Round, layers: int) -> Timed:
    channels = 3 * HEADS * SIZE
    x, flat = r.input(channels)
    w = r.numbers(channels, TAPS)
    outs = r.bench.parts(r.rows, (channels // 3,) * 3)
    ops, held = [], r.numbers(0)
    for layer in range(layers):
        held, cache = r.state(f"inputs {layer}", TAPS - 1, channels)
        taps = r.bench.vector(w.reshape(-1), f"taps {layer}")
        (bank,) = r.bench.banks(taps)
        bank = type(bank)(bank.buffer, "f32", 0, channels, TAPS, TAPS)
        r.bench._banks[taps.name] = (bank,)
        ops.append(Op("conv", (flat, taps, cache), outs, ConvSpec(TAPS)))
    expected = kda.conv(x[r.last], w, held[r.seqs])[0]
    moved = 4 * channels * (2 * r.rows + TAPS + 2 * (TAPS - 1) * r.seqs)
    got = lambda: np.concatenate([r.bench.values(out)[r.last] for out in outs], axis=1)  # noqa: E731
    return Timed(ops, moved, got, expected)


def decay(r: Round, layers: int) -> Timed:
    spec = DecaySpec(HEADS, SIZE, -5.0)
    a, flat = r.input(HEADS * SIZE)
    a_log, bias = r.numbers(HEADS), r.numbers(HEADS * SIZE)
    out = r.bench.output(*a.shape)
    weights = r.bench.vector(a_log, "a_log"), r.bench.vector(bias, "bias")
    ops = [Op("decay", (flat, *weights), (out,), spec)] * layers
    expected = kda.decay(a[r.last], a_log, bias, spec)
    return Timed(ops, 8 * a.size, lambda: r.bench.values(out)[r.last], expected)


def delta(r: Round, layers: int) -> Timed:
    spec, width = DeltaSpec(HEADS, SIZE), HEADS * SIZE
    parts = [r.numbers(r.rows, width) for _ in range(3)]
    qkv = r.bench.parts(r.rows, (width,) * 3)
    r.bench.fill(qkv, np.concatenate(parts, axis=1))
    g = -np.exp(r.numbers(r.rows, width))
    beta, gates = r.input(HEADS)
    out, decays = r.bench.output(r.rows, width), r.bench.input(g)
    ops, held = [], r.numbers(0)
    for layer in range(layers):
        held, cache = r.state(f"state {layer}", HEADS, SIZE, SIZE)
        ops.append(Op("delta", (*qkv, decays, gates, cache), (out,), spec))
    q, k, v, log = (x[r.last].reshape(-1, HEADS, SIZE) for x in (*parts, g))
    expected, _ = kda.delta((q, k, v), log, beta[r.last], held[r.seqs])
    moved = 8 * r.seqs * HEADS * SIZE * SIZE + 20 * r.rows * width
    got = lambda: r.bench.values(out)[r.last]  # noqa: E731
    return Timed(ops, moved, got, expected.reshape(-1, width))


def gated_norm(r: Round, layers: int) -> Timed:
    (x, flat), (gate, gates) = r.input(HEADS * SIZE), r.input(HEADS * SIZE)
    w = r.numbers(SIZE)
    out = r.bench.output(*x.shape)
    op = Op("gated_norm", (flat, gates, r.bench.vector(w, "w")), (out,), RmsNormSpec(1e-5))
    heads = (y[r.last].reshape(-1, HEADS, SIZE) for y in (x, gate))
    expected = kda.gated_norm(*heads, w, 1e-5).reshape(-1, HEADS * SIZE)
    return Timed([op] * layers, 12 * x.size, lambda: r.bench.values(out)[r.last], expected)


def hc_split(r: Round, layers: int) -> Timed:
    n = STREAMS.streams
    outputs, columns = (2 + n) * n, n * WIDTH
    x, flat = r.input(columns)
    fn = r.numbers(outputs, columns) * np.float32(columns**-0.5)
    base, scale = r.numbers(outputs), r.numbers(3)
    outs = r.bench.parts(r.rows, (WIDTH, n, n * n))
    rest = r.bench.vector(base, "base"), r.bench.vector(scale, "scale")
    fns = [r.bench.matrix(("f32", fn.view(np.uint8)), columns=columns) for _ in range(layers)]
    ops = [Op("hc_split", (flat, w, *rest), outs, STREAMS) for w in fns]
    streams = x[r.last].reshape(-1, n, WIDTH)
    split = hyper_connection.split(streams, fn, base, scale, STREAMS)
    expected = np.concatenate([y.reshape(len(streams), -1) for y in split], axis=1)
    got = lambda: np.concatenate([r.bench.values(out)[r.last] for out in outs], axis=1)  # noqa: E731
    return Timed(ops, 4 * fn.size + 8 * x.size, got, expected)


def hc_join(r: Round, layers: int) -> Timed:
    n = STREAMS.streams
    (f, inner), (x, flat) = r.input(WIDTH), r.input(n * WIDTH)
    post, comb = r.numbers(r.rows, n), r.numbers(r.rows, n * n)
    given = r.bench.parts(r.rows, (n, n * n))
    r.bench.fill(given, np.concatenate([post, comb], axis=1))
    out = r.bench.output(*x.shape)
    streams = x[r.last].reshape(-1, n, WIDTH)
    mixes = comb[r.last].reshape(-1, n, n)
    expected = hyper_connection.join(f[r.last], streams, post[r.last], mixes)
    ops = [Op("hc_join", (inner, flat, *given), (out,))] * layers
    got = lambda: r.bench.values(out)[r.last]  # noqa: E731
    return Timed(ops, 8 * x.size + 4 * f.size, got, expected.reshape(-1, n * WIDTH))


OPS = {f.__name__: f for f in (conv, decay, delta, gated_norm, hc_split, hc_join)}


# Constants of zllm.backend.webgpu.kda.
FORMS: dict[str, dict[str, int]] = {
    "": {},
    "token by token": {"MOST_CHUNKED": 0},
    "32 columns": {"FULL": 0},
    "16 columns": {"FULL": 1 << 30},
}


def planned(device: TimingDevice, rows: int, seqs: int) -> Round:
    bench = Bench(device, device.info)
    each, numbers = rows // seqs, np.arange(seqs)
    bench.plan(
        PlanKey(rows, seqs, 1024, "none"),
        seq=np.repeat(numbers, each),
        position=np.tile(100 + np.arange(each), seqs),
        length=np.full(seqs, 100 + each),
        first_row=numbers * each,
        last_row=numbers * each + each - 1,
        read_plane=1 + numbers,
        written_plane=1 + seqs + numbers,
    )
    bench.step = bench.buffer(bench._step())
    return Round(bench, rows, seqs, np.random.default_rng(3))


def seconds(device: TimingDevice, dispatches: Sequence[Dispatch], repeats: int) -> list[float]:
    """Of each dispatch in the best of several runs."""
    program = device.program(dispatches)
    program.submit(memoryview(b"")).wait()  # makes pipelines
    device.timing = True
    for _ in range(repeats):
        program.submit(memoryview(b"")).wait()
    device.timing = False
    runs = [
        [(timed.end_ns - timed.begin_ns) / 1e9 for timed in run] for run in device.rounds[-repeats:]
    ]
    return min(runs, key=sum)


def forms(name: str, rows: int, seqs: int, info: DeviceInfo) -> Mapping[str, Mapping[str, int]]:
    many = name == "delta" and rows >= max(launchers.CHUNK, 2 * seqs)
    return FORMS if many and not info.software else {"": {}}


def measured(device: TimingDevice, name: str, rows: int, seqs: int, layers: int, n: int) -> Json:
    r = planned(device, rows, seqs)
    made: list[Any] = [r.bench.step]
    allocate = r.bench.buffer

    def buffer(data: Any) -> Any:
        made.append(allocate(data))
        return made[-1]

    r.bench.buffer = buffer  # type: ignore[method-assign]
    timed = OPS[name](r, layers)
    dispatches = [d for op in timed.ops for d in lower(op, r.bench)]
    each = len(dispatches) // layers
    parts = np.reshape(seconds(device, dispatches, n), (layers, each)).mean(axis=0)
    error = float(np.abs(timed.got() - timed.expected).max() / np.abs(timed.expected).max())
    for held in made:
        device.destroy(held)
    return {
        "op": name, "rows": rows, "seqs": seqs, "seconds": float(parts.sum()), "bytes": timed.moved,
        "parts": parts.tolist(), "error": error,
    }  # fmt: skip


def set_constants(settings: Mapping[str, int]) -> None:
    for name, value in settings.items():
        setattr(launchers, name, value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(OPS), help="ops, comma-separated")
    parser.add_argument("--rows", type=int, default=512, help="at most")
    args = parser.parse_args()
    device = open_timing_device()
    rate = copy_bandwidth(device)
    if not device.info.software:
        device.busy = busy_program(device)
    report: Json = {
        **describe(),
        "adapter": device.info.name,
        "copy_bytes_per_s": rate,
        "cases": [],
    }
    print(f"{device.info.name}: copies {rate / 1e9:.0f} GB/s")
    for name in args.only.split(","):
        for rows, seqs in ROUNDS:
            states = 4 * (2 * seqs + 1) * HEADS * SIZE * SIZE
            if rows > args.rows or states > device.info.max_binding_bytes:
                continue
            for form, settings in forms(name, rows, seqs, device.info).items():
                usual = {setting: getattr(launchers, setting) for setting in settings}
                set_constants(settings)
                found = measured(device, name, rows, seqs, args.layers, args.repeats)
                set_constants(usual)
                found |= {"form": form, "share": found["bytes"] / found["seconds"] / rate}
                report["cases"].append(found)
                wrong = "" if found["error"] <= TOLERANCE else f"  WRONG by {found['error']:.1e}"
                parts = " + ".join(f"{part * 1e6:.1f}" for part in found["parts"])
                print(
                    f"{name:10} rows {rows:4} of {seqs:2}: {found['seconds'] * 1e6:9.1f} µs a "
                    f"layer ({parts}), share {found['share']:5.2f}{wrong} {form}",
                    flush=True,
                )
                if args.out:
                    args.out.write_text(json.dumps(report, indent=1))
    device.close()


if __name__ == "__main__":
    main()
