"""zllm inspect: what a model file or folder holds, from its headers alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zllm import hub
from zllm.bin.terminal import printable
from zllm.errors import LoadError, ZllmError
from zllm.model import tokenizer_of
from zllm.quant.formats import FORMATS
from zllm.weight import shards
from zllm.weight.byte_source import FileSource
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.gguf import MAGIC, open_gguf
from zllm.weight.linear_weight import LinearWeight, format_of

F32_BYTES = 4
DEFAULT_CONTEXT = 4096  # of the memory estimate: what the engine takes if it is not told

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="a GGUF file, a Hugging Face folder, or a name as of --model"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="estimate the memory for this many cached tokens"
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="write it all as JSON")


def run(args: argparse.Namespace) -> int:
    if args.context is not None and args.context < 1:
        raise ZllmError(f"--context must be at least 1, got {args.context}")
    path = hub.resolve(args.path)
    try:
        checkpoint = open_checkpoint(path)
    except LoadError as error:
        found, lines = _describe_container(path, error)
    else:
        found = describe(path, checkpoint, args.context)
        if args.tensors:
            found["tensors"] = _tensors(checkpoint.tensors)
        checkpoint.close()
        lines = _lines(found)
    print(json.dumps(found) if args.json else "\n".join(map(printable, lines)))
    return 0


def describe(path: Path, checkpoint: Checkpoint, context: int | None = None) -> Json:
    """Everything that `zllm inspect` tells, but for the list of tensors."""
    formats = _formats(checkpoint.tensors)
    missing = [name for name, entry in formats.items() if not entry["runnable"]]
    config = dataclasses.asdict(checkpoint.config)
    rope = config.pop("rope", None)
    return {
        "path": str(path),
        "name": checkpoint.metadata.get("general.name") or path.name,
        "architecture": checkpoint.architecture,
        "runnable": not missing,
        "formats_without_codec": missing,
        "parameters": sum(math.prod(weight.shape) for weight in checkpoint.tensors.values()),
        "weights_bytes": checkpoint.size_bytes,
        "formats": formats,
        "config": config,
        "rope": rope,
        "tokenizer": _tokenizer(checkpoint, path),
        "generation": {
            name: value
            for name, value in dataclasses.asdict(checkpoint.generation).items()
            if value is not None
        },
        "memory": _memory(checkpoint, context),
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
    if path.suffix == ".safetensors":
        files = shards.open_files([path])
        yield files.tensors
        files.close()
        return
    if not path.is_file():
        raise error
    source = FileSource(path)
    try:
        if bytes(source.read(0, min(4, source.size_bytes))) != MAGIC:
            raise error
        yield open_gguf(source).tensors
    finally:
        source.close()


def _formats(tensors: Mapping[str, LinearWeight]) -> dict[str, Json]:
    formats: dict[str, Json] = {}
    for weight in tensors.values():
        name = format_of(weight)
        entry = formats.setdefault(name, {"tensors": 0, "bytes": 0, "runnable": name in FORMATS})
        entry["tensors"] += 1
        entry["bytes"] += weight.data.size_bytes
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


def _memory(checkpoint: Checkpoint, context: int | None) -> Json:
    """Bytes held for a context of this many tokens."""
    config = checkpoint.config
    context = context or min(config.context, DEFAULT_CONTEXT)
    # Keys and values of every layer, f32.
    per_token = 2 * config.layers * config.kv_heads * config.head_size * F32_BYTES
    parameters = sum(math.prod(weight.shape) for weight in checkpoint.tensors.values())
    return {
        "context": context,
        "kv_bytes_per_token": per_token,
        "kv_bytes": per_token * context,
        "weights_f32_bytes": parameters * F32_BYTES,
        "weights_packed_bytes": checkpoint.size_bytes,
    }


def _tensors(tensors: Mapping[str, LinearWeight]) -> list[Json]:
    return [
        {
            "name": name,
            "format": format_of(weight),
            "shape": list(weight.shape),
            "bytes": weight.data.size_bytes,
        }
        for name, weight in tensors.items()
    ]


def _lines(found: Json) -> list[str]:
    switches = {k: v for k, v in found["config"].items() if isinstance(v, bool | str)}
    sizes = {k: v for k, v in found["config"].items() if k not in switches}
    rows = [
        ("model", f"{found['name']} ({found['architecture']})"),
        ("path", found["path"]),
        ("runs", _verdict(found)),
        ("parameters", f"{found['parameters']:,} in {_mib(found['weights_bytes'])}"),
        *_format_rows(found["formats"]),
        ("sizes", _pairs(sizes)),
        ("switches", _pairs(switches)),
        ("rope", _rope_text(found["rope"])),
        ("tokenizer", _tokenizer_text(found["tokenizer"])),
        ("generation", _pairs(found["generation"]) or "no defaults"),
        *_memory_rows(found["memory"]),
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
    return f"no: there is no codec for {', '.join(missing)}; known: {', '.join(FORMATS)}"


def _format_rows(formats: dict[str, Json]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, entry in formats.items():
        note = "" if entry["runnable"] else "  (no codec)"
        text = f"{name:<7} {entry['tensors']:>5} tensors {_mib(entry['bytes']):>12}{note}"
        rows.append(("" if rows else "formats", text))
    return rows


def _rope_text(rope: Json | None) -> str:
    if rope is None:
        return "none"
    if rope["scaling"] == "default":
        rope = {name: rope[name] for name in ("theta", "divisors", "interleaved")}
    return _pairs(rope)


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


def _memory_rows(memory: Json) -> list[tuple[str, str]]:
    return [
        ("cache", f"{memory['kv_bytes_per_token']:,} bytes a token"),
        (
            "memory",
            f"weights {_mib(memory['weights_packed_bytes'])} packed or "
            f"{_mib(memory['weights_f32_bytes'])} as f32, "
            f"cache {_mib(memory['kv_bytes'])} for {memory['context']} tokens",
        ),
    ]


def _pairs(values: Json) -> str:
    shown = {name: value for name, value in values.items() if value not in ((), None)}
    return ", ".join(f"{name} {_value(value)}" for name, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"of {len(value)}" if len(value) > 4 else "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
