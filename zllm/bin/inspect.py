"""zllm inspect: what a model file or folder holds, from its headers alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from zllm import hub
from zllm.bin.model_flags import tokenizer_of
from zllm.bin.terminal import printable
from zllm.errors import ZllmError
from zllm.quant.formats import FORMATS
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.linear_weight import format_of

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
    checkpoint = open_checkpoint(path)
    found = describe(path, checkpoint, args.context)
    if args.tensors:
        found["tensors"] = _tensors(checkpoint)
    checkpoint.close()
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(printable(line) for line in _lines(found)))
    return 0


def describe(path: Path, checkpoint: Checkpoint, context: int | None = None) -> Json:
    """Everything that `zllm inspect` tells, but for the list of tensors."""
    formats = _formats(checkpoint)
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
        "tokenizer": _tokenizer(checkpoint),
        "generation": {
            name: value
            for name, value in dataclasses.asdict(checkpoint.generation).items()
            if value is not None
        },
        "memory": _memory(checkpoint, context),
    }


def _formats(checkpoint: Checkpoint) -> dict[str, Json]:
    formats: dict[str, Json] = {}
    for weight in checkpoint.tensors.values():
        name = format_of(weight)
        entry = formats.setdefault(name, {"tensors": 0, "bytes": 0, "runnable": name in FORMATS})
        entry["tensors"] += 1
        entry["bytes"] += weight.data.size_bytes
    return dict(sorted(formats.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(checkpoint: Checkpoint) -> Json:
    try:
        tokenizer = tokenizer_of(checkpoint)
    except ZllmError as error:
        return {"usable": False, "reason": str(error)}
    files = checkpoint.tokenizer_files
    template = tokenizer.chat_template or (files.chat_template if files else None)
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


def _tensors(checkpoint: Checkpoint) -> list[Json]:
    return [
        {
            "name": name,
            "format": format_of(weight),
            "shape": list(weight.shape),
            "bytes": weight.data.size_bytes,
        }
        for name, weight in checkpoint.tensors.items()
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
    lines = [f"{name:<11} {text}" for name, text in rows]
    tensors = found.get("tensors", [])
    width = max((len(tensor["name"]) for tensor in tensors), default=0)
    for tensor in tensors:
        shape = " × ".join(map(str, tensor["shape"]))
        lines.append(f"  {tensor['name']:<{width}}  {tensor['format']:<6} {shape}")
    return lines


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
