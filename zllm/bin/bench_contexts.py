"""zllm bench --decode-contexts: what a token costs after prompts of growing length."""

from __future__ import annotations

import argparse
from typing import Any

from zllm.bin.bench_runs import Prompts, decode
from zllm.bin.model_flags import token_ids
from zllm.embedded import Engine
from zllm.errors import ZllmError

GROUP = "full"  # the caches that grow with the context

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decode-contexts",
        metavar="N,N,…",
        help="also time a token after prompts of these lengths, and what each more costs beside "
        "the reading of its cache",
    )


def lengths(args: argparse.Namespace) -> list[int]:
    if args.decode_contexts is None:
        return []
    return token_ids(args.decode_contexts, "--decode-contexts")


def longest_context(args: argparse.Namespace) -> int:
    """Tokens of the longest sequence measured here."""
    found = lengths(args)
    return max(found) + int(args.new_tokens) if found else 0


def check(args: argparse.Namespace) -> None:
    found = lengths(args)
    if found and (found != sorted(set(found)) or found[0] < 1):
        raise ZllmError(f"--decode-contexts {args.decode_contexts}: expected growing numbers")


def measure(engine: Engine, args: argparse.Namespace, bandwidth: float | None) -> list[Json]:
    """Best of `args.runs` at each length; a prompt is computed once, then found in the cache.

    `cost_ratio`: the time beyond that of the first length over that of reading the longer cache.
    """
    backend: Any = engine.backend
    slot_bytes = backend.slot_bytes(GROUP)
    prompts = Prompts(engine.model.vocabulary)
    found: list[Json] = []
    for length in lengths(args):
        batch = [prompts.take(length) for _ in range(args.batch)]
        runs = [decode(engine, batch, args.new_tokens) for _ in range(args.runs + 1)][1:]
        # In the middle of a run.
        cached = args.batch * (length + args.new_tokens // 2) * slot_bytes
        row: Json = {
            "context": length,
            "ms_per_round": 1000 * min(run.round_s for run in runs),
            "cache_bytes": cached,
        }
        if found and bandwidth is not None:
            more_ms = row["ms_per_round"] - found[0]["ms_per_round"]
            read_ms = 1000 * (cached - found[0]["cache_bytes"]) / bandwidth
            row |= {"more_ms": more_ms, "read_ms": read_ms, "cost_ratio": more_ms / read_ms}
        found.append(row)
    return found


def rows(contexts: list[Json] | None) -> list[tuple[str, str]]:
    """Lines of the report's text."""
    lines = []
    for row in contexts or ():
        text = f"{row['ms_per_round']:.3f} ms a round"
        if "more_ms" in row:
            text += f", {row['more_ms']:.3f} ms more: {row['cost_ratio']:.2f} × reading the cache"
        lines.append((f"at {row['context']}", text))
    return lines
