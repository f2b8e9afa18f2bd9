"""zllm bench --tune: the fastest settings of matrix products on this adapter, for every run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from zllm.bin.bench_runs import GREEDY, Prompts
from zllm.embedded import Engine
from zllm.errors import ZllmError
from zllm.fetch.store import cache_dir

ROUNDS = 6  # timed with each setting; of every kernel the fastest counts
TOKENS = (1, 8)  # sequences that decode together

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tune",
        action="store_true",
        help="WebGPU: try settings of its matrix products on the model's decode rounds, and keep "
        "the fastest whose answers are the same for every run on this adapter",
    )


def check(args: argparse.Namespace) -> None:
    if args.backend == "oracle":
        raise ZllmError("--tune is about kernels: --backend webgpu")


def run(engine: Engine, args: argparse.Namespace) -> int:
    """`engine` on the backend that is compose.TRACED, with lanes for the most of TOKENS."""
    backend: Any = engine.backend
    info = backend.device.info
    if info.software:
        raise ZllmError(f"{info.name} computes on the CPU: its kernels have nothing to tune")
    prompts = Prompts(engine.model.vocabulary)
    batch = [prompts.take(args.decode_prompt) for _ in range(max(TOKENS))]
    tried: list[Any] = []
    with tqdm(desc="tuning", unit=" settings", leave=False, disable=None) as bar:
        for one in backend.tune(TOKENS, lambda tokens: _measure(engine, batch[:tokens])):
            tried.append(one)
            bar.update()
    found = backend.keep_best(tried, cache_dir())
    report = {
        "adapter": info.name,
        "model": args.model,
        "tried": [asdict(one) for one in tried],
        "found": [asdict(choice) for choice in found],
    }
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    return 0


def _measure(engine: Engine, prompts: list[list[int]]) -> tuple[list[list[int]], Any]:
    """Answers to all prompts together; the kernels of rounds in which all take part."""
    backend: Any = engine.backend
    engine._loop.plans.forget()
    request = {"max_tokens": ROUNDS + 2 * len(prompts), **GREEDY}
    streams: list[Any] = [engine.stream({"tokens": prompt, **request}) for prompt in prompts]
    answers = [_ids(next(stream)) for stream in streams]
    answers[0] += _ids(next(streams[0]))  # the first round of all makes the plan
    backend.start_trace()
    for _ in range(ROUNDS):
        answers[0] += _ids(next(streams[0]))
    rounds = backend.end_trace(lambda at: (len(prompts), 0))
    for at, stream in enumerate(streams):
        for chunk in stream:
            answers[at] += _ids(chunk)
    return answers, rounds


def _ids(chunk: Json) -> list[int]:
    return [id for choice in chunk["choices"] for id in choice["token_ids"]]


def _lines(report: Json) -> list[str]:
    lines = [f"{report['model']} on {report['adapter']}, products of a decode round:"]
    for choice in report["found"]:
        format, tokens = choice["format"], choice["tokens"]
        there = [t for t in report["tried"] if t["tokens"] == tokens]
        before = there[0]["ms"][format]
        after = next(t["ms"][format] for t in there if t["few"] == choice["few"])
        setting = ", ".join(f"{name} {value}" for name, value in choice["few"].items())
        lines.append(f"{format}, {tokens} at once: {before:.3f} -> {after:.3f} ms with {setting}")
    if not report["found"]:
        lines.append("nothing is worth a change")
    wrong = sum(not t["right"] for t in report["tried"])
    lines.append(
        f"{len(report['tried'])} settings tried" + f", {wrong} gave other answers" * (wrong > 0)
    )
    if report["found"]:
        lines.append(f"kept in {cache_dir()}")
    return lines
