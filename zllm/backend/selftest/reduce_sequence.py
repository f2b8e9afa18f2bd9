"""Smaller shapes of ops that look along a sequence: fewer heads, shorter windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zllm.backend.contract import Op, Value, Weight
from zllm.backend.selftest.reduce import Size, mapped, shaped, wide


def heads(op: Op, size: Size) -> Op:
    """Whose widths are all in proportion to the heads: rope, decay, delta."""
    old, new = op.spec.heads, min(op.spec.heads, size.heads)
    widths = {value.shape[1] for value in (*op.ins, *op.outs) if isinstance(value, Value)}
    widths |= {w.shape[0] for w in op.ins if isinstance(w, Weight) and len(w.shape) == 1}
    return mapped(op, {w: w // old * new for w in widths}, replace(op.spec, heads=new))


def grouped_queries(op: Op, size: Size) -> Op:
    """rope_append and attend: as many query heads per key head as before."""
    spec = op.spec
    kv_heads = min(spec.kv_heads, max(1, size.heads // 2))
    count = spec.heads // spec.kv_heads * kv_heads
    small = replace(spec, heads=count, kv_heads=kv_heads, window=min(spec.window, size.window))
    keys, queries = kv_heads * spec.head_size, count * spec.head_size
    ins: list[Any] = [wide(op.value(0), queries), *op.ins[1:]]
    if op.name == "rope_append":
        ins[1:3] = wide(op.value(1), keys), wide(op.value(2), keys)
    elif len(ins) > 2 and ins[2] is not None:
        ins[2] = shaped(op.weight(2), count)
    return replace(op, ins=tuple(ins), outs=(wide(op.outs[0], queries),), spec=small)


def attend_latent(op: Op, size: Size) -> Op:
    cache, chosen = op.ins[2:]
    spec = replace(op.spec, heads=min(op.spec.heads, size.heads))
    unfold = shaped(op.weight(1), spec.heads * (spec.nope + spec.value), spec.rank)
    query = wide(op.value(0), spec.heads * (spec.nope + spec.rotated))
    ins = (query, unfold, cache, _chosen(chosen, size.chosen))
    return replace(op, ins=ins, outs=(wide(op.outs[0], spec.heads * spec.value),), spec=spec)


def _chosen(x: Any, most: int) -> Value | None:
    return wide(x, min(x.shape[1], most)) if isinstance(x, Value) else None


def select(op: Op, size: Size) -> Op:
    spec = _index(op.spec, size.heads, size.chosen)
    ins = (wide(op.value(0), spec.heads * spec.size), wide(op.value(1), spec.heads), op.ins[2])
    return replace(op, ins=ins, outs=(wide(op.outs[0], spec.width),), spec=spec)


def _index(spec: Any, most_heads: int, most: int) -> Any:
    """At least one pool is chosen."""
    pools = max(1, min(spec.top_k, most) // spec.pool)
    return replace(spec, heads=min(spec.heads, most_heads), top_k=pools * spec.pool)


def select_entries(op: Op, size: Size) -> Op:
    index = _index(op.spec.index, size.heads, size.chosen_entries)
    spec = replace(op.spec, index=index, rate=min(op.spec.rate, size.rate))
    ins = (wide(op.value(0), index.heads * index.size), wide(op.value(1), index.heads), op.ins[2])
    return replace(op, ins=ins, outs=(wide(op.outs[0], index.top_k),), spec=spec)


def attend_compressed(op: Op, size: Size) -> Op:
    _, raw, _, entries, chosen = op.ins
    spec = replace(
        op.spec,
        heads=min(op.spec.heads, size.heads),
        rate=min(op.spec.rate, size.rate),
        window=min(op.spec.window, size.window),
    )
    width = spec.heads * spec.size
    picked = _chosen(chosen, size.chosen_entries)
    ins = (wide(op.value(0), width), raw, shaped(op.weight(2), spec.heads), entries, picked)
    return replace(op, ins=ins, outs=(wide(op.outs[0], width),), spec=spec)


def compress_append(op: Op, size: Size) -> Op:
    spec = replace(op.spec, rate=min(op.spec.rate, size.rate))
    ape = shaped(op.weight(3), spec.rate, spec.width)
    return replace(op, ins=(*op.ins[:3], ape, *op.ins[4:]), spec=spec)


def conv(op: Op, size: Size) -> Op:
    """One kernel a channel: fewer channels of each part."""
    w = op.weight(1)
    parts = [size.height(channels) for channels in w.parts]
    widths = parts if len(op.outs) > 1 else [sum(parts)]
    taps = shaped(w, sum(parts), w.shape[1], parts=parts)
    ins = (wide(op.value(0), sum(parts)), taps, op.ins[2])
    return replace(op, ins=ins, outs=tuple(map(wide, op.outs, widths)))
