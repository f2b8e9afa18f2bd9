"""zllm bench: prefill and decode through the engine, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from statistics import median
from typing import Any

from zllm.bin import bench_contexts, bench_growth, bench_kl, bench_trace, bench_tune
from zllm.bin.answer_stats import memory_text
from zllm.bin.bench_contexts import longest_context
from zllm.bin.bench_products import Products
from zllm.bin.bench_runs import DecodeRun, PrefillRun, Prompts, decode, prefill, spare_tokens
from zllm.bin.bench_traffic import decode_traffic
from zllm.bin.model_flags import add_engine, open_engine
from zllm.bin.random_shape import SHAPES, random_model, random_shape
from zllm.bin.random_weights import FORMATS
from zllm.embedded import DEFAULT_CONTEXT, Engine
from zllm.errors import ZllmError
from zllm.runtime.compose import TRACED

# Short, so that decode is measured where attention weighs little: context <= 128 by default.
DECODE_PROMPT = 32
MODEL = "smollm2"

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine(parser, model=MODEL)
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
    bench_contexts.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="write every figure as JSON")
    _add_random(parser)
    bench_kl.add_arguments(parser)
    bench_growth.add_arguments(parser)
    bench_trace.add_arguments(parser)
    bench_tune.add_arguments(parser)


def _add_random(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("random weights, in place of --model")
    group.add_argument(
        "--random-shape", choices=SHAPES, help="a model of this shape, made on the device"
    )
    group.add_argument(
        "--format", choices=FORMATS, help="of its matrices (default: as files of it have them)"
    )
    group.add_argument("--layers", type=int, metavar="N", help="only its first N layers")


def run(args: argparse.Namespace) -> int:
    tune = args.tune or None
    if args.growth:
        _refuse("with --growth", {"--kl": args.kl, "--text": args.text, "--trace": args.trace})
        _refuse("with --growth", {"--tune": tune})
        return bench_growth.run(args)
    _refuse("without --growth", {"--lengths": args.lengths})
    if args.trace is None:
        _refuse("without --growth or --trace", {"--plot": args.plot})
    if args.kl is not None:
        _refuse("with --kl", {"--random-shape": args.random_shape, "--trace": args.trace})
        _refuse("with --kl", {"--tune": tune})
        return bench_kl.run(args)
    _refuse("without --kl", {"--text": args.text, "--tokens-file": args.tokens_file})
    if args.random_shape is None:
        _refuse("without --random-shape", {"--format": args.format, "--layers": args.layers})
    _check(args)
    if args.trace is not None:
        _refuse("with --trace", {"--tune": tune})
        return _trace(args)
    if args.tune:
        return _tune(args)
    engine, load_s = _open(args)
    with engine:
        report = measure(engine, args)
        if args.decode_contexts is not None:
            bandwidth = report["copy_bytes_per_s"]
            report["contexts"] = bench_contexts.measure(engine, args, bandwidth)
        report |= {"load_s": load_s, "model": args.model, "memory": dict(engine.backend.memory())}
    report |= {"peak_rss_bytes": _peak_rss(), "machine": _machine()}
    if args.json:
        print(json.dumps(report))
    else:
        print("\n".join(_lines(report)))
    return 0


def _trace(args: argparse.Namespace) -> int:
    bench_trace.check(args)
    args.backend = TRACED
    engine, _ = _open(args)
    with engine:
        return bench_trace.run(engine, args)


def _tune(args: argparse.Namespace) -> int:
    bench_tune.check(args)
    args.backend, args.batch = TRACED, max(bench_tune.TOKENS)
    engine, _ = _open(args)
    with engine:
        return bench_tune.run(engine, args)


def _open(args: argparse.Namespace) -> tuple[Engine, float]:
    longest = max(
        args.prompt_tokens + 1, args.decode_prompt + args.new_tokens, longest_context(args)
    )
    longest += spare_tokens(args.batch)
    if args.context is None and longest > DEFAULT_CONTEXT:
        args.context = longest
    cache_tokens = max(2 * (args.context or 0), (args.batch + 1) * (longest + 64))
    settings: Json = {"lanes": args.batch, "cache_tokens": cache_tokens}
    if args.random_shape is not None:
        shape = random_shape(args.random_shape, format=args.format, layers=args.layers)
        settings["model"] = random_model(shape)
        args.model = settings["model"].name
        args.resident = "packed"  # as f32 the oracle would hold every repeated row
    return open_engine(args, **settings)


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
    if args.random_shape is not None and args.model != MODEL:
        raise ZllmError("give --model or --random-shape, not both")
    bench_contexts.check(args)


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
    traffic = decode_traffic(engine, args.batch)
    bandwidth = _bandwidth(engine)
    round_s = min(run.round_s for run in decodes)
    prefill_s = min(run.seconds for run in prefills)
    return {
        "weight_bytes_per_round": traffic.weight_bytes,
        "copy_bytes_per_s": bandwidth,
        "share": None if bandwidth is None else traffic.weight_bytes / round_s / bandwidth,
        "prefill_tflop_s": 2 * traffic.products * args.prompt_tokens / prefill_s / 1e12,
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


def _bandwidth(engine: Engine) -> float | None:
    """Of a kernel that copies; None on the oracle."""
    backend: Any = engine.backend
    return float(backend.copy_bandwidth()) if backend.name == "webgpu" else None


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
    rows += _traffic_rows(report)
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


def _traffic_rows(report: Json) -> list[tuple[str, str]]:
    read = f"{report['weight_bytes_per_round'] / 2**20:,.1f} MiB of weights a round"
    if report["share"] is not None:
        bandwidth = f"{report['copy_bytes_per_s'] / 1e9:,.1f} GB/s"
        read += f": {100 * report['share']:.1f} % of the {bandwidth} of a copying kernel"
    rows = [
        ("reads", read),
        ("computes", f"{report['prefill_tflop_s']:.3g} TFLOP/s in prefill"),
    ]
    return rows + bench_contexts.rows(report.get("contexts"))


def _rate(rates: Json) -> str:
    return f"{rates['best']:.1f} tokens/s best, {rates['median']:.1f} median of {len(rates['all'])}"
