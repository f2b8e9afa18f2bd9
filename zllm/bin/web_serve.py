"""zllm web serve: serve a built site on loopback, with the models that are pulled."""

from __future__ import annotations

import argparse
from pathlib import Path

from zllm import hub
from zllm.bin.web_build import DEFAULT_SITE
from zllm.web.build import build
from zllm.web.serve import serve

DEFAULT_PORT = 8080


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", type=Path, default=Path(DEFAULT_SITE), metavar="DIR",
        help=f"the site to serve (default: {DEFAULT_SITE}), built first where there is none",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free port")


def run(args: argparse.Namespace) -> int:
    if not args.dir.exists():
        build(args.dir)
    models = {name: hub.cached_path(name) for name in hub.MODELS if hub.is_cached(name)}
    serve(
        args.dir, models, args.port, lambda url: print(f"serving {args.dir} at {url}", flush=True)
    )
    return 0
