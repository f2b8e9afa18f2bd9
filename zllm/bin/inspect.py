"""zllm inspect: what a model file or folder holds, from its headers alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from zllm import hub
from zllm.bin.config_rows import config_rows, pairs
from zllm.bin.memory_rows import default_context, memory, memory_rows, mib
from zllm.bin.plan_drawing import plan_lines
from zllm.bin.tensor_file import describe_tensor, tensor_line
from zllm.bin.terminal import printable
from zllm.errors import LoadError, ZllmError
from zllm.model import tokenizer_of
from zllm.quant.formats import FORMATS
from zllm.quant.weights import SCHEMES, has_codec
from zllm.runtime.survey import Layer, Survey, survey
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.container import open_container
from zllm.weight.linear_weight import LinearWeight, format_of

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="a GGUF file, a Hugging Face folder, or a name as of --model"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of a sequence in the memory estimate"
    )
    parser.add_argument(
        "--memory", action="store_true", help="tell the memory needed by what holds it"
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument(
        "--tensor",
        metavar="NAME",
        help="decode one tensor, named as in the file or as by --tensors",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.npy", help="where --tensor writes its values, as float32"
    )
    parser.add_argument("--json", action="store_true", help="write it all as JSON")


def run(args: argparse.Namespace) -> int:
    if args.context is not None and args.context < 1:
        raise ZllmError(f"--context must be at least 1, got {args.context}")
    if args.out is not None and args.tensor is None:
        raise ZllmError("--out is for --tensor: say which one")
    path = hub.resolve(args.path)
    if args.tensor is not None:
        tensor = describe_tensor(path, args.tensor, args.out)
        print(json.dumps(tensor) if args.json else printable(tensor_line(tensor)))
        return 0
    try:
        checkpoint = open_checkpoint(path)
    except LoadError as error:
        found, lines = _describe_container(path, error)
    else:
        model = survey(checkpoint.architecture, checkpoint.config, checkpoint.tensors)
        found = describe(path, checkpoint, model, args.context)
        if args.tensors:
            found["tensors"] = _tensors(checkpoint.tensors)
        checkpoint.close()
        lines = _lines(found, checkpoint.config, model.layers, memory=args.memory)
    print(json.dumps(found) if args.json else "\n".join(map(printable, lines)))
    return 0


def describe(path: Path, checkpoint: Checkpoint, model: Survey, context: int | None) -> Json:
    """Everything that `zllm inspect` tells, but for the list of tensors."""
    formats = _formats(checkpoint.tensors)
    missing = [name for name, entry in formats.items() if not entry["runnable"]]
    return {
        "path": str(path),
        "name": checkpoint.metadata.get("general.name") or path.name,
        "architecture": checkpoint.architecture,
        "runnable": not missing,
        "formats_without_codec": missing,
        "parameters": sum(math.prod(weight.shape) for weight in checkpoint.tensors.values()),
        "weights_bytes": checkpoint.size_bytes,
        "formats": formats,
        "config": dataclasses.asdict(checkpoint.config),
        "tokenizer": _tokenizer(checkpoint, path),
        "generation": {
            name: value
            for name, value in dataclasses.asdict(checkpoint.generation).items()
            if value is not None
        },
        "layers": [_layer(layer) for layer in model.layers],
        "memory": memory(model, context or default_context(checkpoint.config.context)),
    }


def _describe_container(path: Path, error: LoadError) -> tuple[Json, list[str]]:
    """The tensors of a file that is no runnable model; raises `error` if it is no container."""
    with open_tensors(path, error) as tensors:
        found: Json = {
            "path": str(path),
            "runnable": False,
            "reason": str(error),
            "parameters": sum(math.prod(weight.shape) for weight in tensors.values()),
            "formats": _formats(tensors),
            "tensors": _tensors(tensors),
        }
    rows = [("path", str(path)), ("runs", f"no: {error}"), *_format_rows(found["formats"])]
    return found, [_row(*row) for row in rows] + _tensor_rows(found["tensors"])


@contextmanager
def open_tensors(path: Path, error: LoadError) -> Iterator[Mapping[str, LinearWeight]]:
    """The tensors of one container file under their own names; raises `error` if it is none."""
    if not path.is_file():
        raise error
    try:
        container = open_container(path)
    except LoadError:
        raise error from None
    with closing(container):
        yield container.weights


def _formats(tensors: Mapping[str, LinearWeight]) -> dict[str, Json]:
    formats: dict[str, Json] = {}
    for weight in tensors.values():
        name = format_of(weight)
        entry = formats.setdefault(name, {"tensors": 0, "bytes": 0, "runnable": has_codec(name)})
        entry["tensors"] += 1
        entry["bytes"] += weight.size_bytes
    return dict(sorted(formats.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(checkpoint: Checkpoint, path: Path) -> Json:
    try:
        tokenizer = tokenizer_of(checkpoint, path)
    except ZllmError as error:
        return {"usable": False, "reason": str(error)}
    template = tokenizer.chat_template
    return {
        "usable": True,
        "kind": _tokenizer_kind(checkpoint),
        "vocabulary": tokenizer.vocabulary,
        "bos": tokenizer.bos_id,
        "adds_bos": tokenizer.add_bos,
        "eos": sorted(tokenizer.eos_ids | set(checkpoint.generation.eos)),
        "chat_template": template is not None,
    }


def _tokenizer_kind(checkpoint: Checkpoint) -> str:
    files = checkpoint.tokenizer_files
    if files is None:
        keys = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
        return " ".join(str(checkpoint.metadata[key]) for key in keys if key in checkpoint.metadata)
    model = (files.tokenizer or {}).get("model")
    return str(model.get("type")) if isinstance(model, dict) else "unknown"


def _layer(layer: Layer) -> Json:
    parts = [{"kind": part.kind, **dict(part.facts)} for part in layer.parts]
    return {**dataclasses.asdict(layer), "parts": parts}


def _tensors(tensors: Mapping[str, LinearWeight]) -> list[Json]:
    return [
        {
            "name": name,
            "format": format_of(weight),
            "shape": list(weight.shape),
            "bytes": weight.size_bytes,
        }
        for name, weight in tensors.items()
    ]


def _lines(found: Json, config: Any, layers: Sequence[Layer], *, memory: bool) -> list[str]:
    plan = plan_lines(layers)
    rows = [
        ("model", f"{found['name']} ({found['architecture']})"),
        ("path", found["path"]),
        ("runs", _verdict(found)),
        ("parameters", f"{found['parameters']:,} in {mib(found['weights_bytes'])}"),
        *_format_rows(found["formats"]),
        *config_rows(config),
        ("tokenizer", _tokenizer_text(found["tokenizer"])),
        ("generation", pairs(found["generation"]) or "no defaults"),
        ("plan", plan[0]),
        *(("", line) for line in plan[1:]),
        *memory_rows(found["memory"], whole=memory),
    ]
    return [_row(*row) for row in rows] + _tensor_rows(found.get("tensors", []))


def _row(name: str, text: str) -> str:
    return f"{name:<11} {text}"


def _tensor_rows(tensors: list[Json]) -> list[str]:
    width = max((len(tensor["name"]) for tensor in tensors), default=0)
    rows = []
    for tensor in tensors:
        shape = " × ".join(map(str, tensor["shape"]))
        rows.append(f"  {tensor['name']:<{width}}  {tensor['format']:<6} {shape}")
    return rows


def _verdict(found: Json) -> str:
    missing = found["formats_without_codec"]
    if not missing:
        return "yes"
    known = ", ".join((*FORMATS, *SCHEMES))
    return f"no: there is no codec for {', '.join(missing)}; known: {known}"


def _format_rows(formats: dict[str, Json]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, entry in formats.items():
        note = "" if entry["runnable"] else "  (no codec)"
        text = f"{name:<7} {entry['tensors']:>5} tensors {mib(entry['bytes']):>12}{note}"
        rows.append(("" if rows else "formats", text))
    return rows


def _tokenizer_text(tokenizer: Json) -> str:
    if not tokenizer["usable"]:
        return f"not usable: {tokenizer['reason']}"
    template = "with" if tokenizer["chat_template"] else "no"
    bos = "adds" if tokenizer["adds_bos"] else "no"
    ends = ", ".join(map(str, tokenizer["eos"])) or "none"
    return (
        f"{tokenizer['kind']}, {tokenizer['vocabulary']} ids, ends at {ends}, {bos} BOS, "
        f"{template} chat template"
    )
