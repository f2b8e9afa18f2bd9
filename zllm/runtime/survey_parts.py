"""Recorded operations in the words of their specs: what a layer plan shows of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any

from zllm.backend.contract import Cache, Op, Value

Fact = bool | int | float | str | tuple[int, ...]
Source = Callable[[Value], tuple[Op, bool]]  # the op that made a value; whether in this layer


@dataclass(frozen=True, slots=True)
class Part:
    """An operation worth telling: what it is, and the numbers of its spec that are not usual."""

    kind: str
    facts: tuple[tuple[str, Fact], ...]


# Kind, and the fields of the spec that say nothing about size or structure.
_KINDS = {
    "attend": ("gqa", {"scale", "rotated", "interleaved"}),
    "attend_latent": ("mla", {"scale"}),
    "select": ("indexer", set[str]()),
    "attend_compressed": ("compressed", set[str]()),
    "select_entries": ("indexer", {"rate"}),
    "conv": ("conv", set[str]()),
    "decay": ("decay", {"heads", "head_size"}),
    "delta": ("kda", set[str]()),
    "hc_split": ("hyper", {"eps", "norm_eps"}),
    "experts": ("experts", {"interleaved"}),
    "gated_linear": ("ffn", set[str]()),
    "gated": ("ffn", set[str]()),
}
# They write what the ops above read.
_APPENDS = frozenset({"rope_append", "latent_append", "index_append", "compress_append"})


def part_of(op: Op, source: Source, *, routed: bool) -> Part | None:
    """None for an operation that a plan does not show.

    routed: the layer has experts, so that a plain feed-forward part is a shared expert. An unknown
    operation on a cache is shown under its own name.
    """
    if op.name not in _KINDS:
        stateful = any(isinstance(x, Cache) for x in op.ins) and op.name not in _APPENDS
        return Part(op.name, tuple(_facts(op.spec, set()))) if stateful else None
    kind, hidden = _KINDS[op.name]
    facts = [*_extra(op, source), *_facts(op.spec, hidden)]
    if kind == "decay" and not facts:
        return None
    return Part("shared" if kind == "ffn" and routed else kind, tuple(facts))


def _facts(spec: Any, hidden: set[str]) -> Iterator[tuple[str, Fact]]:
    """Fields without a default, and those that differ from it; specs within specs are flattened."""
    for field in dataclasses.fields(spec) if spec is not None else ():
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            yield from _facts(value, hidden)
        elif field.name not in hidden and (field.default is MISSING or value != field.default):
            yield field.name, value


def _extra(op: Op, source: Source) -> Iterator[tuple[str, Fact]]:
    """What the operands say and the spec does not."""
    if op.name in ("gated_linear", "gated"):
        yield "width", op.outs[0].shape[1]
    if op.name == "attend" and len(op.ins) > 2 and op.ins[2] is not None:
        yield "sinks", True
    if op.name == "experts":
        ids = op.ins[1]
        assert isinstance(ids, Value)
        route, _ = source(ids)
        yield from _facts(route.spec, {"normalise", "scale"})
        if route.name == "route_by_token":
            yield "by_token", True
    for operand in op.ins:
        if isinstance(operand, Value) and operand.dtype == "i32" and op.name != "experts":
            maker, here = source(operand)
            yield (
                ("chosen" if maker.name.startswith("select") else maker.name),
                "here" if here else "shared",
            )
