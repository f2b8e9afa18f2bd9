"""zllm bench: prefill and decode through the engine, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from statistics import median
from typing import Any

from zllm.bin import bench_growth, bench_kl
from zllm.bin.answer_stats import memory_text
from zllm.bin.bench_products import Products
from zllm.bin.bench_runs import DecodeRun, PrefillRun, Prompts, decode, prefill
from zllm.bin.model_flags import add_engine, open_engine
from zllm.embedded import Engine
from zllm.errors import ZllmError

# Short, so that decode is measured where attention weighs little: context <= 128 by default.
DECODE_PROMPT = 32

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine(parser, model="smollm2")
    for flag, default, about in (
        ("--prompt-tokens", 512, "length of the prefill prompt"),
        ("--decode-prompt", DECODE_PROMPT, "length of the prompt before the decode rounds"),
        ("--new-tokens", 64, "tokens generated in a decode run"),
        ("--runs", 5, "runs of each; best and median are told"),
        ("--batch", 1, "sequences that decode together"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{about} (default: {default})"
        )
    parser.add_argument(
        "--products",
        action="store_true",
        help="oracle: also time the model's matrix products alone, in turns with each run",
    )
    parser.add_argument("--json", action="store_true", help="write every figure as JSON")
    bench_kl.add_arguments(parser)
    bench_growth.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.growth:
        _refuse("with --growth", {"--kl": args.kl, "--text": args.text})
        return bench_growth.run(args)
    _refuse("without --growth", {"--lengths": args.lengths, "--plot": args.plot})
    if args.kl is not None:
        return bench_kl.run(args)
    _refuse("without --kl", {"--text": args.text, "--tokens-file": args.tokens_file})
    _check(args)
    longest = max(args.prompt_tokens + 1, args.decode_prompt + args.new_tokens)
    context = args.context or 0
    cache_tokens = max(2 * context, (args.batch + 1) * (longest + 64))
    engine, load_s = open_engine(args, lanes=max(16, args.batch), cache_tokens=cache_tokens)
    with engine:
        report = measure(engine, args)
        report |= {"load_s": load_s, "model": args.model, "memory": dict(engine.backend.memory())}
    report |= {"peak_rss_bytes": _peak_rss(), "machine": _machine()}
    if args.json:
        print(json.dumps(report))
    else:
        print("\n".join(_lines(report)))
    return 0


def _refuse(mode: str, flags: Json) -> None:
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise ZllmError(f"{given[0]} has no meaning {mode}")


def _check(args: argparse.Namespace) -> None:
    for name, least in (
        ("prompt_tokens", 1),
        ("decode_prompt", 1),
        ("new_tokens", 2),
        ("runs", 1),
        ("batch", 1),
    ):
        if getattr(args, name) < least:
            flag = "--" + name.replace("_", "-")
            raise ZllmError(f"{flag} must be at least {least}, got {getattr(args, name)}")
    if args.products and args.batch != 1:
        raise ZllmError("--products compares one sequence: leave --batch at 1")


def measure(engine: Engine, args: argparse.Namespace) -> Json:
    """The figures of `args.runs` prefills and decodes, after one of each to warm up."""
    prompts = Prompts(engine.model.vocabulary)
    alone = (Products(engine, args.prompt_tokens), Products(engine, 1)) if args.products else None
    prefills: list[PrefillRun] = []
    decodes: list[DecodeRun] = []
    products: list[tuple[float, float]] = []  # seconds of a prefill's, of a decode run's
    for at in range(args.runs + 1):
        if alone is not None:
            products.append((alone[0].seconds(1), alone[1].seconds(args.new_tokens - 1)))
        prefills.append(prefill(engine, prompts.take(args.prompt_tokens)))
        batch = [prompts.take(args.decode_prompt) for _ in range(args.batch)]
        decodes.append(decode(engine, batch, args.new_tokens))
        if sys.stderr.isatty():
            print(f"\rrun {at} of {args.runs}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    figures = _figures(engine, args, prefills[1:], decodes[1:])
    if alone is not None:
        figures["products"] = _ratios(products[1:], prefills[1:], decodes[1:])
    return figures


def _figures(
    engine: Engine, args: argparse.Namespace, prefills: list[PrefillRun], decodes: list[DecodeRun]
) -> Json:
    host = [run.host_ms_per_round for run in decodes]
    return {
        "backend": engine.backend.name,
        "resident": args.resident,
        "batch": args.batch,
        "prompt_tokens": args.prompt_tokens,
        "decode_context": [args.decode_prompt, args.decode_prompt + args.new_tokens],
        "runs": args.runs,
        "prefill_tok_s": _best_and_median([run.rate for run in prefills], largest=True),
        "decode_tok_s": _best_and_median([run.rate for run in decodes], largest=True),
        "first_token_s": {
            str(args.prompt_tokens): _best_and_median([run.seconds for run in prefills]),
            str(args.decode_prompt): _best_and_median([run.first_s for run in decodes]),
        },
        # The oracle computes on the host: its time per round is no overhead.
        "host_ms_per_round": (None if engine.backend.name == "oracle" else _best_and_median(host)),
        "adapter": _adapter(engine),
    }


def _ratios(
    products: list[tuple[float, float]], prefills: list[PrefillRun], decodes: list[DecodeRun]
) -> Json:
    """The engine's time over the products' alone: of the best runs, and pair by pair."""
    result: Json = {}
    for name, alone, whole in (
        ("prefill", [pair[0] for pair in products], [run.seconds for run in prefills]),
        ("decode", [pair[1] for pair in products], [run.seconds for run in decodes]),
    ):
        pairs = [b / a for a, b in zip(alone, whole, strict=True)]
        result[name] = {
            "ratio": min(whole) / min(alone),
            "best_pair": min(pairs),
            "pairs": pairs,
            "products_s": min(alone),
            "engine_s": min(whole),
        }
    return result


def _best_and_median(values: list[float], *, largest: bool = False) -> Json:
    best = max(values) if largest else min(values)
    return {"best": best, "median": median(values), "all": values}


def _adapter(engine: Engine) -> str | None:
    backend: Any = engine.backend
    return str(backend.device.info.name) if backend.name == "webgpu" else None


def _peak_rss() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _machine() -> Json:
    import numpy as np

    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _lines(report: Json) -> list[str]:
    where = report["adapter"] or f"{report['resident']} weights"
    first, last = report["decode_context"]
    rows = [
        ("model", f"{report['model']} on {report['backend']} ({where})"),
        ("load", f"{report['load_s']:.2f} s"),
        (f"prefill {report['prompt_tokens']}", _rate(report["prefill_tok_s"])),
        ("decode", f"{_rate(report['decode_tok_s'])}, context {first} to {last}"),
    ]
    if report["batch"] > 1:
        rows[-1] = ("decode", f"{rows[-1][1]}, {report['batch']} sequences together")
    for tokens, times in report["first_token_s"].items():
        rows.append(("first token", f"{times['best']:.3f} s after {tokens} prompt tokens"))
    if report["host_ms_per_round"] is not None:
        rows.append(("host", f"{report['host_ms_per_round']['median']:.2f} ms of CPU a round"))
    rows.append(("memory", memory_text(report["memory"]).removeprefix("memory ")))
    if report["peak_rss_bytes"] is not None:
        rows.append(("", f"process at most {report['peak_rss_bytes'] / 2**20:.0f} MiB"))
    for name, ratio in report.get("products", {}).items():
        text = f"{ratio['ratio']:.2f} × the products alone, best pair {ratio['best_pair']:.2f}"
        rows.append((f"{name}", f"{text} ({1000 * ratio['products_s']:.1f} ms)"))
    return [f"{name:<12} {text}" for name, text in rows]


def _rate(rates: Json) -> str:
    return f"{rates['best']:.1f} tokens/s best, {rates['median']:.1f} median of {len(rates['all'])}"
