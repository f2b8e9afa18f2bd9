"""Flags that every command with a model shares, and the engine they ask for."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from tqdm import tqdm

from zllm.errors import ZllmError
from zllm.runtime.compose import BACKENDS, KV_DTYPES, RESIDENT

if TYPE_CHECKING:
    from zllm.embedded import Engine


def add_model(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """--model: a path, a pulled name, or an `hf:` name."""
    about = (
        "a GGUF file, a Hugging Face folder, a name of `zllm pull --list`, or hf:owner/repo/file"
    )
    if default is not None:
        about += f" (default: {default})"
    parser.add_argument(
        "--model", metavar="M", default=default, required=default is None, help=about
    )


def add_engine(parser: argparse.ArgumentParser, *, model: str | None = None) -> None:
    """--model and how to run it: --backend, --context and so on. `model`: the default."""
    add_model(parser, default=model)
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="auto: WebGPU where there is a GPU, else the NumPy oracle (default)",
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="most tokens of a sequence, prompt and answer"
    )
    parser.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        help="how WebGPU keeps keys and values: f16 (default but for logits) or f32",
    )
    parser.add_argument(
        "--device-memory",
        metavar="SIZE",
        type=memory_size,
        help="what a WebGPU device may take, as in 6GiB; too large a model is refused at once",
    )
    parser.add_argument(
        "--reference-ops",
        metavar="NAME,…",
        help="ops of a WebGPU plan that run on the NumPy oracle, while a kernel is under suspicion",
    )
    parser.add_argument(
        "--resident",
        choices=RESIDENT,
        default="f32",
        help="how the oracle holds weights: f32 (fast), or packed as in the file (small)",
    )


def open_engine(args: argparse.Namespace, **options: Any) -> tuple[Engine, float]:
    """The engine that the flags ask for and the seconds it took; a progress bar on a terminal."""
    from zllm.embedded import Engine  # half of a command's start-up; some never need it

    if args.context is not None and args.context < 2:
        raise ZllmError(f"--context must be at least 2, got {args.context}")
    start = time.perf_counter()
    with _progress(f"loading {Path(args.model).name}") as bar:

        def show(loaded: int, total: int) -> None:
            bar.total = total
            bar.update(loaded - bar.n)

        settings = {"model": args.model, "context": args.context, **options}
        engine = Engine(
            backend=args.backend,
            resident=args.resident,
            kv_dtype=args.kv_dtype,
            device_memory=args.device_memory,
            reference_ops=(args.reference_ops or "").replace(",", " ").split(),
            progress=show,
            **settings,
        )
    return engine, time.perf_counter() - start


def memory_size(text: str) -> int:
    """Bytes of `6GiB`, `512 MiB`, `6GB` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]i?B?|B?)", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as in 6GiB or 800MiB")
    unit = match[2].upper().removesuffix("B")
    base = 1024 if unit.endswith("I") else 1000
    return int(float(match[1]) * base ** " KMGT".index(unit[:1] or " "))


def token_ids(text: str, flag: str) -> list[int]:
    """Comma- or space-separated ids. ZllmError names the flag and what is no id."""
    ids = []
    for word in text.replace(",", " ").split():
        if not (word.isascii() and word.isdigit()):
            raise ZllmError(f"{flag}: {word[:40]!r} is no token id; expected numbers as in 1,2,3")
        ids.append(int(word))
    if not ids:
        raise ZllmError(f"{flag} is empty: give at least one token id, as in 1,2,3")
    return ids


def read_token_lists(path: str) -> list[list[int]]:
    """The sequences of a --tokens-file: a JSON list, a list of lists, or ids between commas."""
    text = read_bytes(path, "--tokens-file").decode("utf-8", "replace").strip()
    flag = f"--tokens-file {path}"
    if not text.startswith("["):
        return [token_ids(text, flag)]
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ZllmError(f"{flag} is no JSON list: {error}") from None
    rows = found if found and all(isinstance(row, list) for row in found) else [found]
    for row in rows:
        bad = [id for id in row if type(id) is not int or id < 0]
        if bad or not row:
            what = f"{str(bad[0])[:40]!r} is no token id" if bad else "a list is empty"
            raise ZllmError(f"{flag}: {what}; expected ids as in [1, 2, 3]")
    return rows


def read_bytes(path: str, flag: str) -> bytes:
    """A whole file; `-` is standard input. ZllmError names the flag."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ZllmError(f"{flag}: cannot read {path}: {error.strerror or error}") from error


def _progress(what: str) -> tqdm[Never]:
    # disable=None is tqdm's word for "unless it is a terminal"
    bar: tqdm[Never] = tqdm(desc=what, unit="B", unit_scale=True, leave=False, disable=None)
    return bar
