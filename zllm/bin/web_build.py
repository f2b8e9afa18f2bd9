"""zllm web build: write the browser engine and its chat page as a static site."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zllm.web.build import build

DEFAULT_SITE = "zllm-site"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(DEFAULT_SITE), metavar="DIR",
        help=f"the folder to write (default: {DEFAULT_SITE}); an earlier site there is replaced",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="write the answer as JSON")


def run(args: argparse.Namespace) -> int:
    built = build(args.out)
    if built.without_bytecode:
        print(
            f"zllm: Python files are not byte-compiled ({built.without_bytecode}), so the page "
            "starts about 1.7 s later",
            file=sys.stderr,
        )
    if args.json:
        compiled = built.without_bytecode is None
        print(json.dumps({"site": str(args.out), "bytes": built.size_bytes, "bytecode": compiled}))
    else:
        print(f"{args.out}: {built.size_bytes / 1e6:.1f} MB; see it with `zllm web serve`")
    return 0
