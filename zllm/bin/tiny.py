"""zllm tools tiny: write a seeded tiny checkpoint of an architecture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from zllm.bin.tiny_checkpoint import tiny_model, tiny_models, write_checkpoint
from zllm.errors import ZllmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arch", metavar="A", help="an architecture of --list, or the path of a config.json"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the weights (default: 0)"
    )
    parser.add_argument("--list", action="store_true", help="list the architectures")
    parser.add_argument("--json", action="store_true", help="write what was made or found as JSON")


def run(args: argparse.Namespace) -> int:
    if args.list:
        _print_list(as_json=args.json)
        return 0
    if args.arch is None or args.out is None:
        raise ZllmError("give --arch A and --out DIR, or --list")
    if args.seed < 0:
        raise ZllmError(f"--seed must be at least 0, got {args.seed}")
    model = tiny_model(args.arch)
    parameters = write_checkpoint(model, args.out, args.seed)
    if args.json:
        made = {"arch": model.name, "path": str(args.out), "parameters": parameters}
        print(json.dumps({**made, "seed": args.seed}))
    else:
        print(f"{args.out}: {model.name}, {parameters:,} parameters, seed {args.seed}")
    return 0


def _print_list(*, as_json: bool) -> None:
    models = tiny_models()
    if as_json:
        print(json.dumps({"architectures": list(models)}))
        return
    for name in models:
        print(name)
