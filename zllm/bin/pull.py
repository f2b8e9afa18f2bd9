"""zllm pull: fetch a model into the cache, or list the known ones."""

from __future__ import annotations

import argparse
import json

from zllm import hub
from zllm.errors import ZllmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a known name, or hf:owner/repo[/path/file.gguf]")
    parser.add_argument("--list", action="store_true", help="list the known names and stop")
    parser.add_argument(
        "--verify", action="store_true", help="hash a cached file instead of trusting its size"
    )
    parser.add_argument("--json", action="store_true", help="write the answer as JSON")


def run(args: argparse.Namespace) -> int:
    if args.list:
        _print_list(as_json=args.json)
        return 0
    if args.name is None:
        raise ZllmError("nothing to pull: name a model, or see `zllm pull --list`")
    was_cached = args.name in hub.MODELS and hub.is_cached(args.name)
    path = hub.pull(args.name, verify=args.verify)
    if args.json:
        print(json.dumps({"name": args.name, "path": str(path), "was_cached": was_cached}))
    else:
        print(f"{args.name}: {'already at' if was_cached else 'stored at'} {path}")
    return 0


def _print_list(*, as_json: bool) -> None:
    rows = [
        {
            "name": name,
            "summary": model.summary,
            "size_bytes": model.size_bytes,
            "cached": hub.is_cached(name),
            "path": str(hub.cached_path(name)),
        }
        for name, model in hub.MODELS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        state = "cached" if row["cached"] else "not fetched"
        print(f"{row['name']:<12} {row['summary']} ({state})")
