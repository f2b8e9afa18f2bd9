"""llama.cpp on this machine's CPU: prefill and decode of one GGUF file, as one JSON line.

Runs in a Python of its own that has llama-cpp-python; it imports nothing of zllm.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import time
from importlib import metadata
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-prompt", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()

    llama_cpp: Any = importlib.import_module("llama_cpp")
    start = time.perf_counter()
    llm = llama_cpp.Llama(
        args.model,
        n_ctx=max(args.prompt_tokens, args.decode_prompt + args.new_tokens) + 64,
        n_batch=512,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )
    load_s = time.perf_counter() - start
    ids = random.Random(0)
    runs = [one_run(llm, args, ids) for _ in range(args.runs + 1)][1:]  # the first warms up
    prefill, decode = ([run[i] for run in runs] for i in (0, 1))
    report = {
        "peer": f"llama.cpp (llama-cpp-python {metadata.version('llama-cpp-python')})",
        "threads": args.threads,
        "load_s": load_s,
        "prefill_tok_s": {"best": max(prefill), "all": prefill},
        "decode_tok_s": {"best": max(decode), "all": decode},
    }
    print(json.dumps(report))


def one_run(llm: Any, args: argparse.Namespace, ids: random.Random) -> tuple[float, float]:
    """Tokens/s of a prefill and of the decode rounds after a short prompt."""
    llm.reset()
    prompt = [ids.randrange(llm.n_vocab()) for _ in range(args.prompt_tokens)]
    start = time.perf_counter()
    llm.eval(prompt)
    prefill = args.prompt_tokens / (time.perf_counter() - start)

    llm.reset()
    prompt = [ids.randrange(llm.n_vocab()) for _ in range(args.decode_prompt)]
    count, first, last = 0, 0.0, 0.0
    for _ in llm.generate(prompt, temp=0):
        last = time.perf_counter()
        first = first or last
        count += 1
        if count == args.new_tokens:
            break
    return prefill, (count - 1) / (last - first)


if __name__ == "__main__":
    main()
