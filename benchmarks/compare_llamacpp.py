"""zLLM beside llama.cpp's CPU backend: the same file, the same lengths, in the same run.

Each backend is measured between two measurements of the peer, so that a change of the machine's
mood shows. Ratios are zLLM's best over the peer's best.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from zllm import hub

ROOT = Path(__file__).parents[1]
Json = dict[str, Any]


def main() -> int:
    args = _arguments()
    about, model = machine.describe(), hub.resolve(args.model)
    lengths = [
        *("--prompt-tokens", str(args.prompt_tokens)),
        *("--new-tokens", str(args.new_tokens)),
        *("--runs", str(args.runs)),
    ]
    threads = ["--threads", str(args.threads)] if args.threads else []
    peer_command = [args.peer_python, str(ROOT / "benchmarks/peer_llamacpp.py"), str(model)]
    peers = [_measure([*peer_command, *lengths, *threads])]
    backends: Json = {}
    for backend in args.backends:
        command = [sys.executable, "-m", "zllm.bin.main", "bench", "--json"]
        products = ["--products"] if backend == "oracle" else []
        flags = ["--model", str(model), "--backend", backend, *lengths, *products]
        backends[backend] = _measure([*command, *flags])
        peers.append(_measure([*peer_command, *lengths, *threads]))
    data = {
        "machine": about,
        "model": model.name,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "runs": args.runs,
        "peers": peers,
        "backends": {name: _portable(report) for name, report in backends.items()},
    }
    markdown = report_text(data)
    print(markdown)
    for path in machine.write("llamacpp", markdown, data, args.out):
        print(f"wrote {path}")
    return 1 if any("error" in report for report in [*peers, *backends.values()]) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer-python",
        required=True,
        metavar="P",
        help="a Python that has llama-cpp-python, such as the one of an environment made for it",
    )
    parser.add_argument("--model", default="smollm2", metavar="M", help="a GGUF file, or a name")
    parser.add_argument("--backends", nargs="+", default=["oracle", "webgpu"], metavar="B")
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="of the peer (default: all cores)")
    parser.add_argument("--out", type=Path, default=machine.RESULTS, metavar="FOLDER")
    return parser.parse_args()


def _measure(command: list[str]) -> Json:
    """The JSON that a command prints, or {"error": …}."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": reason[0]}
    report: Json = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def _portable(report: Json) -> Json:
    """Without the path of this machine's model file."""
    return {name: value for name, value in report.items() if name != "model"}


def best(reports: list[Json], name: str) -> float | None:
    """The best rate of any report that has one."""
    return max((report[name]["best"] for report in reports if "error" not in report), default=None)


def report_text(data: Json) -> str:
    """The comparison as a page of Markdown."""
    peer = {name: best(data["peers"], name) for name in ("prefill_tok_s", "decode_tok_s")}
    lines = [
        f"# {data['model']} beside llama.cpp",
        "",
        machine.text(data["machine"]),
        f"Best of {data['runs']} runs; tokens/s; in brackets the ratio to llama.cpp.",
        "",
        f"| | prefill {data['prompt_tokens']} | decode {data['new_tokens']} | first token, s | |",
        "|---|---|---|---|---|",
        _peer_row(data["peers"], peer),
        *(_backend_row(name, report, peer) for name, report in data["backends"].items()),
        "",
    ]
    return "\n".join(lines)


def _peer_row(peers: list[Json], best_rates: dict[str, float | None]) -> str:
    good = [report for report in peers if "error" not in report]
    if not good:
        return f"| llama.cpp | - | - | - | {peers[0]['error']} |"
    decodes = ", ".join(f"{report['decode_tok_s']['best']:.1f}" for report in good)
    rates = [f"{rate:.1f}" for rate in best_rates.values()]
    about = f"{good[0]['peer']}, {good[0]['threads']} threads; decode in turn {decodes}"
    return f"| llama.cpp | {rates[0]} | {rates[1]} | - | {about} |"


def _backend_row(name: str, report: Json, peer: dict[str, float | None]) -> str:
    if "error" in report:
        return f"| {name} | - | - | - | {report['error']} |"
    cells = []
    for rate, other in peer.items():
        ratio = f" ({report[rate]['best'] / other:.2f} ×)" if other else ""
        cells.append(f"{report[rate]['best']:.1f}{ratio}")
    first = next(iter(report["first_token_s"].values()))["best"]
    return f"| {name} | {cells[0]} | {cells[1]} | {first:.2f} | {'; '.join(_notes(report))} |"


def _notes(report: Json) -> list[str]:
    notes = [report["adapter"] or f"{report['resident']} weights"]
    if report["host_ms_per_round"] is not None:
        notes.append(f"{report['host_ms_per_round']['median']:.2f} ms of host CPU a round")
    for name, ratio in report.get("products", {}).items():
        notes.append(f"{name} {ratio['ratio']:.2f} × its matrix products")
    return notes


if __name__ == "__main__":
    sys.exit(main())
