"""Every figure that the project promises of a large GPU, the most important first.

Each measurement runs in a process of its own with a limit of time; one that fails is told and the
next begins. The results so far are written after each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

ROOT = Path(__file__).parents[1]

Json = dict[str, Any]
Figure = Callable[[dict[str, Json]], float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of `zllm bench --backend webgpu --json`."""

    name: str
    flags: str
    limit_s: int


MEASUREMENTS = (
    Measurement("f16", "--random-shape llama-8b --format f16 --prompt-tokens 2048 --runs 3", 100),
    Measurement("q4_0", "--random-shape llama-8b --format q4_0 --prompt-tokens 512 --runs 3", 70),
    Measurement("smollm2", "--random-shape smollm2 --new-tokens 256 --runs 5", 50),
    Measurement("q8_0", "--random-shape llama-8b --format q8_0 --prompt-tokens 512 --runs 3", 70),
    Measurement(
        "f16 batch 8",
        "--random-shape llama-8b --format f16 --batch 8 --prompt-tokens 32 --runs 3",
        70,
    ),
    Measurement(
        "f16 contexts",
        "--random-shape llama-8b --format f16 --prompt-tokens 32 --new-tokens 32 --runs 3 "
        "--decode-contexts 128,8192",
        100,
    ),
    Measurement("glm", "--random-shape glm-5.3-flash --layers 16 --prompt-tokens 64 --runs 3", 100),
    Measurement("bf16", "--random-shape llama-8b --format bf16 --prompt-tokens 64 --runs 3", 70),
    Measurement(
        "q4_0 batch 8",
        "--random-shape llama-8b --format q4_0 --batch 8 --prompt-tokens 32 --runs 3",
        70,
    ),
    Measurement("q4_k", "--random-shape llama-8b --format q4_k --prompt-tokens 64 --runs 3", 70),
    Measurement(
        "smollm2 batch 8", "--random-shape smollm2 --new-tokens 128 --batch 8 --runs 3", 50
    ),
)


@dataclass(frozen=True, slots=True)
class Promise:
    """A line of the table: how to compute it, and what it must and should be."""

    what: str
    figure: Figure
    must: float | None = None
    aim: float | None = None
    at_least: bool = True


def _decode(name: str) -> Figure:
    return lambda found: float(found[name]["decode_tok_s"]["best"])


def _of(name: str, key: str) -> Figure:
    return lambda found: float(found[name][key])


def _growth(times_read: float, times_short: float) -> Figure:
    """Time that a long context adds, over what is allowed to add."""

    def figure(found: dict[str, Json]) -> float:
        short, long = found["f16 contexts"]["contexts"]
        allowed = times_read * long["read_ms"] + times_short * short["ms_per_round"]
        return float(long["more_ms"] / allowed)

    return figure


TRACED = (
    ("f16", "--random-shape llama-8b --format f16 --prompt-tokens 512"),
    ("smollm2", "--random-shape smollm2"),
    ("glm", "--random-shape glm-5.3-flash --layers 8 --prompt-tokens 64"),
)


def traces(folder: Path) -> tuple[Measurement, ...]:
    """Where the time goes: for a trace viewer, and drawn where there is matplotlib."""
    draws = importlib.util.find_spec("matplotlib") is not None
    found = []
    for name, flags in TRACED:
        path = folder / f"trace-{name}"
        plot = f" --plot {path}.png" if draws else ""
        flags += f" --runs 2 --new-tokens 32 --trace {path}.json{plot}"
        found.append(Measurement(f"{name} trace", flags, 60))
    return tuple(found)


PROMISES = (
    Promise("copying kernel, TB/s", lambda found: found["f16"]["copy_bytes_per_s"] / 1e12),
    Promise("8B F16, share", _of("f16", "share"), 0.5, 0.65),
    Promise("8B F16, tokens/s", _decode("f16"), aim=174),
    Promise("8B BF16, share", _of("bf16", "share"), 0.5, 0.65),
    Promise("8B Q8_0, tokens/s", _decode("q8_0"), 180, 256),
    Promise("8B Q4_0, tokens/s", _decode("q4_0"), 230, 343),
    Promise("8B Q4_K, tokens/s", _decode("q4_k")),
    Promise(
        "8B F16, batch 8 over batch 1",
        lambda found: _decode("f16 batch 8")(found) / _decode("f16")(found),
        4,
        6,
    ),
    Promise(
        "8B Q4_0, batch 8 over batch 1",
        lambda found: _decode("q4_0 batch 8")(found) / _decode("q4_0")(found),
        4,
        6,
    ),
    Promise("SmolLM2 Q4_1, tokens/s", _decode("smollm2"), 400, 931),
    Promise(
        "SmolLM2, host ms a round",
        lambda found: found["smollm2"]["host_ms_per_round"]["median"],
        1.5,
        1.0,
        at_least=False,
    ),
    Promise("SmolLM2, batch 8, tokens/s", _decode("smollm2 batch 8")),
    Promise("8B F16, prefill of 2,048, TFLOP/s", _of("f16", "prefill_tflop_s"), 12, 60),
    Promise("GLM-5.3-Flash, 16 layers, share", _of("glm", "share"), 0.3, 0.5),
    Promise("8k context over 2× reading + 0.25 t(128)", _growth(2, 0.25), must=1, at_least=False),
    Promise("8k context over 1.3× reading + 0.1 t(128)", _growth(1.3, 0.1), aim=1, at_least=False),
)


def main() -> int:
    args = _arguments()
    everything = (*MEASUREMENTS, *traces(args.out.parent.resolve()))
    wanted = [m for m in everything if not args.only or m.name in args.only.split(",")]
    about = machine.describe()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Json] = {}
    end = time.monotonic() + args.budget
    for measurement in wanted:
        left = end - time.monotonic()
        if left < 5:
            print(f"{measurement.name}: no time left", flush=True)
            continue
        found[measurement.name] = _measure(measurement, args, min(left, measurement.limit_s))
        args.out.write_text(json.dumps({"machine": about, "measurements": found}, indent=1) + "\n")
    markdown = table(found)
    args.out.with_suffix(".md").write_text(machine.text(about) + "\n\n" + markdown)
    print(markdown)
    return 1 if any("error" in report for report in found.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="F.json")
    parser.add_argument("--only", metavar="NAME,…", help="some of the measurements")
    parser.add_argument(
        "--budget", type=float, default=520, metavar="S", help="seconds for all (default: 520)"
    )
    parser.add_argument(
        "--more", default="", metavar="FLAGS", help="for every `zllm bench`, as in '--layers 1'"
    )
    return parser.parse_args()


def _measure(measurement: Measurement, args: argparse.Namespace, limit_s: float) -> Json:
    """The JSON of `zllm bench`, or {"error": …}; a line about it at once."""
    command = [sys.executable, "-m", "zllm.bin.main", "bench", "--backend", "webgpu", "--json"]
    command += [*measurement.flags.split(), *args.more.split()]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s
        )
        said = done.stderr.strip().splitlines()[-5:]
        if done.returncode == 0:
            report: Json = json.loads(done.stdout.strip().splitlines()[-1])
            report["notices"] = said  # such as of a kernel that gave way to the reference
        else:
            report = {"error": "\n".join(said)}
    except subprocess.TimeoutExpired:
        report = {"error": f"not done after {limit_s:.0f} s"}
    report["wall_s"] = time.monotonic() - start
    print(f"{measurement.name}: {_short(report)}", *report.get("notices", ()), sep="\n", flush=True)
    return report


def _short(report: Json) -> str:
    took = f"({report['wall_s']:.0f} s)"
    if "error" in report:
        return f"{report['error']} {took}"
    if "decode_tok_s" not in report:
        parts = (report[phase] for phase in ("prefill", "decode"))
        spent = (f"{p['what']}: {sum(g['ms'] for g in p['groups']):.2f} ms" for p in parts)
        return f"{'; '.join(spent)} {took}"
    decode, prefill = report["decode_tok_s"]["best"], report["prefill_tflop_s"]
    return (
        f"{decode:.1f} tokens/s, share {report['share']:.3f}, prefill {prefill:.2f} TFLOP/s, "
        f"host {report['host_ms_per_round']['median']:.2f} ms, loaded in {report['load_s']:.1f} s "
        f"{took}"
    )


def table(found: dict[str, Json]) -> str:
    """What was promised beside what was measured; `-` where nothing was."""
    lines = ["| | measured | must | aim | |", "|---|---|---|---|---|"]
    for promise in PROMISES:
        try:
            value = promise.figure(found)
        except KeyError:  # not measured, or failed
            lines.append(f"| {promise.what} | - | {_bounds(promise)} | |")
            continue
        lines.append(
            f"| {promise.what} | {value:.4g} | {_bounds(promise)} | {_verdict(promise, value)} |"
        )
    return "\n".join(lines) + "\n"


def _bounds(promise: Promise) -> str:
    sign = "≥" if promise.at_least else "≤"
    bounds = (promise.must, promise.aim)
    return " | ".join("" if bound is None else f"{sign} {bound:g}" for bound in bounds)


def _verdict(promise: Promise, value: float) -> str:
    """The highest of the bounds that was reached."""

    def reached(bound: float | None) -> bool:
        if bound is None:
            return False
        return value >= bound if promise.at_least else value <= bound

    if reached(promise.aim):
        return "aim"
    if reached(promise.must):
        return "must"
    return "" if promise.must is None else "missed"


if __name__ == "__main__":
    sys.exit(main())
