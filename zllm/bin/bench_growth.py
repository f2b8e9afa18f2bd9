"""zllm bench --growth: how time grows with the number of tokens, by kind of attention."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from zllm.bin.growth import FITTED_FROM, KINDS, measure
from zllm.bin.growth_plot import save_plot
from zllm.bin.model_flags import token_ids
from zllm.bin.plot_file import check_plot
from zllm.errors import ZllmError

LENGTHS = "256,512,1024,2048,4096,8192"
LONGEST = 8192  # the tiny models see a little more

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("growth")
    group.add_argument(
        "--growth",
        action="store_true",
        help="time tiny models of each kind of attention on the oracle at growing lengths",
    )
    group.add_argument(
        "--lengths", metavar="N,N,…", help=f"prompt lengths of --growth (default: {LENGTHS})"
    )
    group.add_argument(
        "--plot", type=Path, metavar="F.png", help="draw --growth or --trace into a file"
    )


def run(args: argparse.Namespace) -> int:
    lengths = _lengths(args.lengths or LENGTHS)
    if args.runs < 1:
        raise ZllmError(f"--runs must be at least 1, got {args.runs}")
    if args.plot is not None:
        check_plot(args.plot)
    kinds: list[Json] = []
    for kind in KINDS:
        if sys.stderr.isatty():
            print(f"\r\033[K{kind.name}", end="", file=sys.stderr, flush=True)
        kinds.append(measure(kind, lengths, args.runs))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    report = {"lengths": lengths, "fitted_from": FITTED_FROM, "runs": args.runs, "kinds": kinds}
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    if args.plot is not None:
        save_plot(args.plot, report)
        if not args.json:
            print(f"plot: {args.plot}")
    return 0


def _lengths(text: str) -> list[int]:
    lengths = token_ids(text, "--lengths")
    if lengths != sorted(set(lengths)) or lengths[0] < 2:
        raise ZllmError(f"--lengths {text}: expected growing numbers of at least 2")
    if lengths[-1] > LONGEST:
        raise ZllmError(f"--lengths: at most {LONGEST} tokens, got {lengths[-1]}")
    return lengths


def _lines(report: Json) -> list[str]:
    lines = [
        f"operations in ms of CPU, whole rounds in ms, on the oracle; best of {report['runs']}; "
        f"exponents fitted from {FITTED_FROM:,} tokens",
        _line("tokens", [f"{length:,}" for length in report["lengths"]], "exponent"),
    ]
    for kind in report["kinds"]:
        lines.append(f"{kind['name']} ({kind['arch']})")
        for name, op in kind["ops"].items():
            for phase, unit in (("prefill", "prefill"), ("decode", "decode a token")):
                figures = [_ms(value) for value in op[f"{phase}_ms"]]
                found = op[f"{phase}_exponent"]
                lines.append(
                    _line(f"  {name}, {unit}", figures, "" if found is None else f"{found:.2f}")
                )
        for phase in ("prefill", "decode"):
            figures = [_ms(value) for value in kind[f"{phase}_ms_per_token"]]
            lines.append(_line(f"  whole {phase} a token", figures, ""))
    return lines


def _line(name: str, figures: list[str], last: str) -> str:
    return f"{name:<30}{''.join(f'{figure:>9}' for figure in figures)}{last:>10}".rstrip()


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
