"""zllm bench --trace: when each kernel of a round ran, and where a token's time goes."""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zllm.bin.bench_runs import GREEDY, Prompts, count_tokens, decode, prefill
from zllm.bin.plot_file import check_plot
from zllm.bin.trace_plot import save_plot
from zllm.embedded import Engine
from zllm.errors import ZllmError

ROUNDS = 8  # of decode
SHOWN = 20  # lines of the table

Json = dict[str, Any]
Kernels = Sequence[Any]  # zllm.backend.webgpu.tracing.TracedKernel, in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="F.json",
        help="time every kernel of a prefill and of some decode rounds on WebGPU, and write them "
        "for a trace viewer such as Perfetto; with --plot also as a picture",
    )


def check(args: argparse.Namespace) -> None:
    """ZllmError for what can be known before anything is measured."""
    if args.backend == "oracle":
        raise ZllmError("--trace is about kernels: --backend webgpu")
    if not args.trace.parent.is_dir() or args.trace.is_dir():
        raise ZllmError(f"--trace: cannot write {args.trace}: expected a file in a folder that is")
    if args.plot is not None:
        check_plot(args.plot)


def run(engine: Engine, args: argparse.Namespace) -> int:
    """`engine` on the backend that is compose.TRACED."""
    backend: Any = engine.backend
    report: Json = {
        "model": args.model,
        "adapter": backend.device.info.name,
        "copy_bytes_per_s": backend.copy_bandwidth(),
        "batch": args.batch,
    }
    prompts, events = Prompts(engine.model.vocabulary), []
    for phase, measured in (
        (f"prefill of {args.prompt_tokens:,}", _prefill(engine, prompts, args)),
        (f"decode at {args.decode_prompt:,}", _decode(engine, prompts, args)),
    ):
        untraced_s, rounds = measured
        events += _events(phase, rounds, report["copy_bytes_per_s"])
        # A prefill is all its rounds, a decoded token is one.
        count = 1 if phase.startswith("prefill") else len(rounds)
        report[phase.split()[0]] = {
            "what": phase,
            "untraced_ms": 1000 * untraced_s,
            "kernels": sum(map(len, rounds)) / count,
            "groups": _groups(rounds, count, report["copy_bytes_per_s"]),
        }
    _write(args.trace, report, events)
    if args.plot is not None:
        save_plot(args.plot, report)
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    return 0


def _prefill(
    engine: Engine, prompts: Prompts, args: argparse.Namespace
) -> tuple[float, list[Kernels]]:
    """Seconds untraced, the best of the runs; then the kernels of every round of one more."""
    backend: Any = engine.backend
    runs = [prefill(engine, prompts.take(args.prompt_tokens)) for _ in range(args.runs + 1)][1:]
    backend.start_trace()
    prefill(engine, prompts.take(args.prompt_tokens))
    rows, tokens = backend.prefill_rows, args.prompt_tokens
    rounds = backend.end_trace(lambda at: (1, min((at + 1) * rows, tokens)))
    return min(run.seconds for run in runs), rounds


def _decode(
    engine: Engine, prompts: Prompts, args: argparse.Namespace
) -> tuple[float, list[Kernels]]:
    """Seconds of a round untraced, then the kernels of some."""
    backend: Any = engine.backend
    batch = [prompts.take(args.decode_prompt) for _ in range(args.batch)]
    runs = [decode(engine, batch, args.new_tokens) for _ in range(args.runs + 1)][1:]
    streams: list[Any] = [
        engine.stream({"tokens": prompt, "max_tokens": args.new_tokens, **GREEDY})
        for prompt in batch
    ]
    for stream in streams:
        assert count_tokens(next(stream))
    backend.start_trace()
    for _ in range(min(ROUNDS, args.new_tokens - len(streams))):
        next(streams[0])
    rounds = backend.end_trace(lambda at: (args.batch, args.batch * (args.decode_prompt + 1 + at)))
    for stream in streams:
        stream.close()
    return min(run.round_s for run in runs), rounds


def _events(phase: str, rounds: Sequence[Kernels], bandwidth: float) -> list[Json]:
    """Complete events of the Trace Event Format, times in microseconds of the device's clock."""
    found: list[Json] = []
    for at, kernels in enumerate(rounds):
        begin, end = kernels[0].begin_ns, kernels[-1].end_ns
        span = {"name": f"{phase}, round {at + 1}", "cat": "round", "ph": "X", "pid": 1, "tid": 1}
        found.append({**span, "ts": begin / 1000, "dur": (end - begin) / 1000})
        for kernel in kernels:
            seconds = (kernel.end_ns - kernel.begin_ns) / 1e9
            rate = kernel.size_bytes / seconds if seconds else 0.0
            about = {
                "op": kernel.op,
                "weight": kernel.weight,
                "bytes": round(kernel.size_bytes),
                "GB/s": rate / 1e9,
                "share of bandwidth": rate / bandwidth,
                "TFLOP/s": kernel.operations / seconds / 1e12 if seconds else 0.0,
            }
            event = {"name": kernel.name, "cat": kernel.op, "ph": "X", "pid": 1, "tid": 2}
            times = {"ts": kernel.begin_ns / 1000, "dur": 1e6 * seconds}
            found.append({**event, **times, "args": about})
    return found


def _groups(rounds: Sequence[Kernels], count: int, bandwidth: float) -> list[Json]:
    """Kernels that do the same in every layer, the dearest first; figures of one round."""
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for kernels in rounds:
        for kernel in kernels:
            row = sums[kernel.op, _role(kernel.weight), kernel.name]
            row[0] += 1 / count
            row[1] += (kernel.end_ns - kernel.begin_ns) / 1e6 / count
            row[2] += kernel.size_bytes / count
            row[3] += kernel.operations / count
    return [
        {
            "op": op,
            "weight": weight,
            "kernel": kernel,
            "dispatches": dispatches,
            "ms": ms,
            "bytes": size_bytes,
            "share": 1000 * size_bytes / ms / bandwidth if ms else 0.0,
            "tflop_s": operations / ms / 1e9 if ms else 0.0,
        }
        for (op, weight, kernel), (dispatches, ms, size_bytes, operations) in sorted(
            sums.items(), key=lambda item: -item[1][1]
        )
    ]


def _tflop_s(group: Json) -> str:
    return f"{group['tflop_s']:.3g}" if group["tflop_s"] else ""


def _role(weight: str) -> str:
    """`layers.3.experts.0.gate…` without numbers of layers and experts."""
    return re.sub(r"(layers|experts)\.\d+\.", "", weight)


def _write(path: Path, report: Json, events: Sequence[Json]) -> None:
    start = min(event["ts"] for event in events)
    names = (("process_name", 0, f"zLLM on {report['adapter']}"), ("thread_name", 1, "rounds"))
    tracks = [
        {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
        for kind, thread, name in (*names, ("thread_name", 2, "kernels"))
    ]
    moved = [{**event, "ts": event["ts"] - start} for event in events]
    trace = {"traceEvents": [*tracks, *moved], "displayTimeUnit": "ns", "otherData": report}
    try:
        path.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise ZllmError(f"--trace: cannot write {path}: {error.strerror or error}") from None


def _lines(report: Json) -> list[str]:
    bandwidth = report["copy_bytes_per_s"] / 1e9
    lines = [f"{report['model']} on {report['adapter']}; a copying kernel: {bandwidth:,.1f} GB/s"]
    for phase in ("prefill", "decode"):
        part = report[phase]
        total = sum(group["ms"] for group in part["groups"])
        lines += [
            "",
            f"{part['what']}: {total:.3f} ms in {part['kernels']:.0f} kernels, timed one by one; "
            f"{part['untraced_ms']:.3f} ms untraced, host and all",
            f"{'ms':>10}{'%':>7}{'kernels':>9}{'share':>8}{'TFLOP/s':>9}  op, weight, kernel",
        ]
        for group in part["groups"][:SHOWN]:
            what = ", ".join(filter(None, (group["op"], group["weight"], group["kernel"])))
            lines.append(
                f"{group['ms']:>10.3f}{100 * group['ms'] / total:>7.1f}"
                f"{group['dispatches']:>9.0f}{100 * group['share']:>7.1f}%"
                f"{_tflop_s(group):>9}  {what}"
            )
        hidden = len(part["groups"]) - SHOWN
        if hidden > 0:
            lines.append(f"{'':>10} and {hidden} more")
    return lines
