"""What a model needs in memory: for one sequence, and for as many as an engine runs at once."""

from __future__ import annotations

import dataclasses
from typing import Any

from zllm.embedded import DEFAULT_CONTEXT, DEFAULT_LANES
from zllm.runtime.footprint import Footprint, footprint
from zllm.runtime.survey import Survey

# What an engine may keep of a sequence, by the kind of cache spec.
CACHE_NAMES = {
    "kv": "keys, values",
    "latent": "latents",
    "index": "index keys",
    "state": "state planes",
}

Json = dict[str, Any]


def memory(model: Survey, context: int) -> Json:
    """The figures of `zllm inspect --json`: bytes, for `context` tokens of each sequence."""
    counts = (1, DEFAULT_LANES)
    needs = [footprint(model, sequences=count, context=context) for count in counts]
    return {
        "context": context,
        "cache_bytes_per_token": sum(layer.cache_bytes_per_token for layer in model.layers),
        "state_bytes": sum(layer.state_bytes for layer in model.layers),
        "needs": [_need(need) for need in needs],
    }


def default_context(model_context: int) -> int:
    """What the engine takes if it is not told."""
    return min(model_context, DEFAULT_CONTEXT)


def _need(need: Footprint) -> Json:
    rest = need.tables + sum(need.caches.values()) + need.activations
    return {
        **dataclasses.asdict(need),
        "total_packed": need.weights_packed + rest,
        "total_f32": need.weights_f32 + rest,
    }


def memory_rows(found: Json, *, whole: bool) -> list[tuple[str, str]]:
    """Two rows, or with `whole` a table by what holds the bytes."""
    one = found["needs"][0]
    state = f" and {found['state_bytes']:,} a sequence" if found["state_bytes"] else ""
    cached = sum(one["caches"].values())
    text = (
        f"weights {mib(one['weights_packed'])} packed or {mib(one['weights_f32'])} as f32, "
        f"cache {mib(cached)} for {found['context']} tokens"
    )
    rows = [("cache", f"{found['cache_bytes_per_token']:,} bytes a token{state}"), ("memory", text)]
    return rows + [("", line) for line in _table(found)] if whole else rows


def _table(found: Json) -> list[str]:
    needs = found["needs"]
    lines = [("", *(_sequences(need["sequences"]) for need in needs))]
    names = {"weights_packed": "weights packed", "weights_f32": "weights f32", "tables": "RoPE"}
    for key, name in names.items():
        if any(need[key] for need in needs):
            lines.append((name, *(mib(need[key]) for need in needs)))
    for kind in needs[0]["caches"]:
        name = CACHE_NAMES.get(kind, kind)
        lines.append((name, *(mib(need["caches"][kind]) for need in needs)))
        if kind == "kv":
            lines.append(("  f16 (WebGPU)", *(mib(need["kv_f16"]) for need in needs)))
    rest = {"activations": "activations", "total_packed": "total packed", "total_f32": "total f32"}
    for key, name in rest.items():
        lines.append((name, *(mib(need[key]) for need in needs)))
    return [f"{name:<14} {'  '.join(f'{cell:>15}' for cell in cells)}" for name, *cells in lines]


def _sequences(count: int) -> str:
    return f"{count} sequence{'s' * (count > 1)}"


def mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
