"""zllm bench --kl: a codec or a backend against a reference on the oracle, over a text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from zllm.bin.divergence import Divergence
from zllm.bin.model_flags import open_engine, read_bytes, read_token_lists
from zllm.embedded import Engine
from zllm.errors import GenerationError, ZllmError
from zllm.model import Model

WINDOW = 512  # tokens that see each other, unless --context says another number
ORACLE = "oracle"  # as REF: the model itself, on the oracle with f32 weights

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("compare with a reference")
    group.add_argument(
        "--kl",
        metavar="REF",
        help="compare next-token distributions with REF on the oracle: a model of the same "
        "vocabulary, or `oracle` for the model itself",
    )
    group.add_argument("--text", metavar="F", help="the text to compare over, - for standard input")
    group.add_argument(
        "--tokens-file", metavar="F", help="token ids in place of --text, as of `zllm logits`"
    )
    group.add_argument(
        "--text-tokens", type=int, metavar="N", help="take only the first N tokens of the text"
    )


def run(args: argparse.Namespace) -> int:
    if (args.text is None) == (args.tokens_file is None):
        raise ZllmError("--kl needs a text: give either --text F or --tokens-file F")
    if args.text_tokens is not None and args.text_tokens < 1:
        raise ZllmError(f"--text-tokens must be at least 1, got {args.text_tokens}")
    reference_name = args.model if args.kl == ORACLE else args.kl
    texts = _prepare(args, reference_name)
    page = 64  # no smaller than any backend's page
    cache_tokens = -(-args.context // page) * page
    engine, _ = open_engine(args, lanes=1, cache_tokens=cache_tokens)
    with (
        engine,
        Engine(
            model=reference_name,
            backend="oracle",
            context=args.context,
            lanes=1,
            cache_tokens=cache_tokens,
        ) as reference,
    ):
        report = compare(engine, reference, texts)
        report |= {
            "model": args.model,
            "backend": engine.backend.name,
            "resident": args.resident,
            "reference": reference_name,
            "window": args.context,
        }
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    return 0


def _prepare(args: argparse.Namespace, reference_name: str) -> list[list[int]]:
    """The text's ids, and a context for both: all that can be refused before weights are read."""
    model, reference = Model(args.model), Model(reference_name)
    with closing(model.checkpoint), closing(reference.checkpoint):
        sizes = model.vocabulary, reference.vocabulary
        if sizes[0] != sizes[1]:
            raise ZllmError(f"--kl: the model has {sizes[0]} token ids, the reference {sizes[1]}")
        args.context = args.context or min(WINDOW, model.context, reference.context)
        return _first(_texts(args, model, reference), args.text_tokens)


def compare(engine: Engine, reference: Engine, texts: list[list[int]]) -> Json:
    """Both over every text, in windows of the engine's context."""
    found = Divergence()
    windows = [window for text in texts for window in _windows(text, engine.context)]
    for at, window in enumerate(windows):
        (ours,), (theirs,) = engine.logits([window]), reference.logits([window])
        for name, logits in (("the model", ours), ("the reference", theirs)):
            if not np.isfinite(logits).all():
                raise GenerationError(f"window {at}: {name} gives logits that are not finite")
        found.add(ours, theirs, window)
        if sys.stderr.isatty():
            print(f"\rwindow {at + 1} of {len(windows)}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return {"windows": len(windows), **found.result()}


def _windows(text: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(text), size):
        yield text[first : first + size]


def _texts(args: argparse.Namespace, model: Model, reference: Model) -> list[list[int]]:
    if args.tokens_file is not None:
        return read_token_lists(args.tokens_file)
    raw = read_bytes(args.text, "--text").decode("utf-8", "replace")
    ids = list(model.tokenizer.encode_prompt(raw))
    if args.kl != ORACLE and list(reference.tokenizer.encode_prompt(raw)) != ids:
        raise ZllmError("--kl: the reference has another tokenizer: this text has other ids there")
    return [ids]


def _first(texts: list[list[int]], count: int | None) -> list[list[int]]:
    """The first `count` tokens of all texts. ZllmError if there are none."""
    left = count or sum(map(len, texts))
    kept = []
    for ids in texts:
        kept.append(ids[:left])
        left -= len(kept[-1])
    if not any(kept):
        raise ZllmError("--kl: the text is empty")
    return kept


def _lines(report: Json) -> list[str]:
    weights = f", {report['resident']} weights" if report["backend"] == ORACLE else ""
    perplexity = "none: no token follows another"
    if report["perplexity"] is not None:
        perplexity = f"{report['perplexity']:.4f}, reference {report['reference_perplexity']:.4f}"
    rows = [
        ("model", f"{report['model']} on {report['backend']}{weights}"),
        ("reference", f"{report['reference']} on the oracle, f32 weights"),
        ("text", f"{report['tokens']:,} tokens in {report['windows']} windows"),
        (
            "KL",
            f"mean {report['kl_mean']:.3g}, 99 % below {report['kl_p99']:.3g}, "
            f"max {report['kl_max']:.3g} nats",
        ),
        ("same top 1", f"{100 * report['top1_agreement']:.2f} %"),
        ("perplexity", perplexity),
    ]
    return [f"{name:<12} {text}" for name, text in rows]
