"""zllm logits: the logits that a model gives to every one of some given tokens, as .npy files."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm import hub
from zllm.bin.model_flags import add_engine, open_engine, read_token_lists, token_ids
from zllm.errors import GenerationError, RequestError, ZllmError
from zllm.weight.checkpoint import open_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine(parser)
    # Whoever compares logits wants them exact; --kv-dtype f16 shows what a chat computes with.
    parser.set_defaults(kv_dtype="f32")
    parser.add_argument(
        "--tokens",
        action="append",
        metavar="1,2,3",
        help="token ids of a sequence; given several times, the sequences run as one batch",
    )
    parser.add_argument(
        "--tokens-file",
        action="append",
        metavar="F",
        help="token ids from a file, - for standard input: a JSON list, a JSON list of such lists "
        "(a batch), or ids between commas or spaces; they come after those of --tokens",
    )
    parser.add_argument(
        "--split",
        metavar="5,3,1",
        help="feed the tokens as a prefill, appends and decodes of these lengths (default: all at "
        "once); a sequence that is shorter than their sum ends earlier",
    )
    parser.add_argument(
        "--out",
        action="append",
        required=True,
        metavar="l.npy",
        help="where to write float32 [T, V]; for a batch, one --out for each sequence, or a single "
        "one whose {} becomes 0, 1, …; without {} l.npy becomes l.0.npy, l.1.npy, …",
    )
    parser.add_argument("--json", action="store_true", help="list the written files as JSON")


def run(args: argparse.Namespace) -> int:
    batch = _batch(args)
    split = None if args.split is None else _split(args.split, batch)
    paths = _out_paths(args.out, len(batch))
    args.context = _check_model(args, batch)
    files = _Files(paths)
    try:
        engine, _ = open_engine(args, lanes=len(batch), cache_tokens=_cache_tokens(batch))
        with engine:
            logits = engine.logits(batch, split)
        _check_finite(logits)
        files.write(logits)
    finally:
        files.discard()
    _report(paths, logits, as_json=args.json)
    return 0


def _batch(args: argparse.Namespace) -> list[list[int]]:
    batch = [token_ids(text, "--tokens") for text in args.tokens or []]
    for path in args.tokens_file or []:
        batch += read_token_lists(path)
    if not batch:
        raise ZllmError("no tokens: give --tokens 1,2,3 or --tokens-file F")
    return batch


def _split(text: str, batch: list[list[int]]) -> list[int]:
    split = token_ids(text, "--split")
    longest = max(map(len, batch))
    if 0 in split:
        raise ZllmError("--split: every length must be at least 1, got 0")
    if sum(split) < longest:
        raise ZllmError(f"--split {text} covers {sum(split)} tokens, a sequence has {longest}")
    return split


def _out_paths(outs: list[str], count: int) -> list[Path]:
    if len(outs) == 1 and "{}" in outs[0]:
        outs = [outs[0].replace("{}", str(i)) for i in range(count)]
    elif len(outs) == 1 and count > 1:
        path = Path(outs[0])
        outs = [str(path.with_suffix(f".{i}{path.suffix}")) for i in range(count)]
    if len(outs) != count:
        raise ZllmError(f"{count} sequences and {len(outs)} --out: give one for each, or just one")
    if len(set(outs)) != count:
        raise ZllmError(f"--out names a file twice: {', '.join(outs)}")
    return [Path(out) for out in outs]


def _check_model(args: argparse.Namespace, batch: list[list[int]]) -> int:
    """The context to run with: no larger than the longest sequence needs."""
    checkpoint = open_checkpoint(hub.resolve(args.model))
    vocabulary: int = checkpoint.config.vocabulary
    context: int = args.context or checkpoint.config.context
    checkpoint.close()
    longest = max(map(len, batch))
    largest = max(map(max, batch))
    if largest >= vocabulary:
        raise RequestError(f"token id {largest} is outside the vocabulary of {vocabulary}")
    if longest > context:
        raise RequestError(f"{longest} tokens do not fit a context of {context}")
    return args.context or max(longest, 2)


def _cache_tokens(batch: list[list[int]]) -> int:
    """Room for every sequence in pages of its own."""
    page = 64  # no smaller than any backend's page
    return sum(-(-len(tokens) // page) * page for tokens in batch)


def _check_finite(logits: list[NDArray[np.float32]]) -> None:
    for i, rows in enumerate(logits):
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise GenerationError(
                f"sequence {i}: the logits from token {int(bad.argmax())} on are not finite, so "
                "nothing was written: the weights hold NaN or infinity, or the file is damaged"
            )


class _Files:
    """All files or none: each is written beside its place and moved there at the end."""

    def __init__(self, paths: list[Path]) -> None:
        """ZllmError if one of them cannot be written."""
        self._moves: list[tuple[Path, Path]] = []
        for path in paths:
            temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                if path.is_dir():
                    raise IsADirectoryError(None, "it is a folder")
                temporary.open("xb").close()
            except (OSError, ValueError) as error:
                self.discard()
                reason = getattr(error, "strerror", None) or error
                raise ZllmError(f"--out: cannot write {path}: {reason}") from None
            self._moves.append((temporary, path))

    def write(self, arrays: list[NDArray[Any]]) -> None:
        try:
            for (temporary, _), array in zip(self._moves, arrays, strict=True):
                with temporary.open("wb") as file:
                    np.save(file, array)
            for temporary, path in self._moves:
                temporary.replace(path)
        except OSError as error:
            reason = error.strerror or error
            raise ZllmError(f"--out: cannot write {error.filename or ''}: {reason}") from None

    def discard(self) -> None:
        """Remove what was not moved to its place."""
        for temporary, _ in self._moves:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _report(paths: list[Path], logits: list[NDArray[np.float32]], *, as_json: bool) -> None:
    rows = [
        {"path": str(path), "shape": list(array.shape)}
        for path, array in zip(paths, logits, strict=True)
    ]
    if as_json:
        print(json.dumps({"files": rows}))
        return
    for row in rows:
        print(f"{row['path']}: float32 {row['shape']}")
