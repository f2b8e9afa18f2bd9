"""Ops that look along a sequence: prefill, append and decode, alone and together."""

from __future__ import annotations

from collections.abc import Iterator

from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.attention.gqa import GqaSpec
from zllm.attention.kda import ConvSpec, DeltaSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Op, Value
from zllm.backend.selftest.build import Rounds
from zllm.backend.selftest.entry import CACHE, Entry, op, value, weight
from zllm.rope import RotateSpec

# From position 0 by single tokens, then more; sequences of different lengths, one of which pauses
# and one begins late; a long one beside a short one.
ALONE: Rounds = ((1,), (1,), (19,), (1,))
UNEVEN: Rounds = ((33, 0, 3), (5, 9, 2), (1, 1, 1), (1, 0, 1))
LONG: Rounds = ((130, 7), (1, 1))
SHAPES = {"alone": ALONE, "uneven": UNEVEN, "long": LONG}


def entries() -> Iterator[Entry]:
    for group in (_rope, _keys, _latents, _indexers, _compressed, _states):
        yield from group()


def _over(
    name: str, what: Op, *, formats: tuple[str, ...] = (), everywhere: bool = False
) -> Iterator[Entry]:
    """In sequences of different lengths, or in every shape."""
    named = {"w": formats} if formats else {}
    for shape in SHAPES if everywhere else ("uneven",):
        yield Entry(f"{name}, {shape}", what, SHAPES[shape], named)


def _rope() -> Iterator[Entry]:
    specs = {
        "whole heads": RotateSpec(3, 8, 0, 8, interleaved=False),
        "a part in pairs": RotateSpec(2, 12, 4, 6, interleaved=True),
        "backwards": RotateSpec(2, 12, 6, 6, interleaved=True, inverse=True),
    }
    for name, spec in specs.items():
        width = spec.heads * spec.head_size
        for halves in (1, 2):
            table = weight(halves, spec.rotated, parts=(1,) * halves)
            what = op("rope", (value(width), table), (width,), spec)
            kind = " of two tables" if halves > 1 else ""
            yield from _over(f"rope {name}{kind}", what)


def _keys() -> Iterator[Entry]:
    specs = {
        "grouped": GqaSpec(9, 3, 16, 0.25, 16),
        "window 20": GqaSpec(4, 2, 32, 0.2, 16, window=20),
        "interleaved": GqaSpec(2, 2, 24, 0.2, 8, interleaved=True),
        "one key head": GqaSpec(5, 1, 64, 0.125, 64),
        "head of 128": GqaSpec(2, 1, 128, 0.09, 128),
    }
    for name, spec in specs.items():
        width = spec.heads * spec.head_size
        what = op("attend", (value(width), CACHE), (width,), spec)
        yield from _over(f"attend {name}", what, everywhere=name == "grouped")
    spec = specs["window 20"]
    width, sinks = spec.heads * spec.head_size, weight(spec.heads)
    what = op("attend", (value(width), CACHE, sinks), (width,), spec)
    yield from _over("attend with sinks", what)
    for halves in (1, 2):
        keys = value(spec.kv_heads * spec.head_size)
        table = weight(halves, spec.rotated, parts=(1,) * halves)
        what = op("rope_append", (value(width), keys, keys, CACHE, table), (width,), spec)
        yield from _over(f"rope_append of {halves} tables", what)


def _latents() -> Iterator[Entry]:
    specs = {
        "rotated": MlaSpec(4, nope=16, rotated=8, value=16, rank=32, scale=0.2),
        "not rotated": MlaSpec(3, nope=24, rotated=0, value=8, rank=40, scale=0.2),
    }
    for name, spec in specs.items():
        for format in ("f32", "bf16"):
            what = _attend_latent(spec)
            most = format == "f32" and name == "rotated"
            title = f"attend_latent {name}, {format}"
            yield from _over(title, what, formats=(format,), everywhere=most)
        chosen = _attend_latent(spec, chosen=8)
        yield from _over(f"attend_latent {name}, chosen", chosen, everywhere=name == "rotated")
        rotated = value(spec.rotated) if spec.rotated else None
        append = op("latent_append", (value(spec.rank), rotated, CACHE))
        yield from _over(f"latent_append {name}", append)


def _attend_latent(spec: MlaSpec, chosen: int = 0) -> Op:
    picked: Value | None = value(chosen, "i32") if chosen else None
    kv_b = weight(spec.heads * (spec.nope + spec.value), spec.rank)
    q = value(spec.heads * (spec.nope + spec.rotated))
    return op("attend_latent", (q, kv_b, CACHE, picked), (spec.heads * spec.value,), spec)


def _indexers() -> Iterator[Entry]:
    specs = {
        "of keys": SelectSpec(3, 16, 9),
        "of few keys": SelectSpec(2, 8, 200),
        "of pools": SelectSpec(2, 16, 12, pool=4),
        "of pools with a tail": SelectSpec(4, 12, 8, pool=4, tail=True),
    }
    for name, spec in specs.items():
        ins = (value(spec.heads * spec.size), value(spec.heads), CACHE)
        what = op("select", ins, (value(spec.width, "i32"),), spec)
        yield from _over(f"select {name}", what, everywhere=name != "of few keys")
    plain = op("index_append", (value(16), CACHE, None, None))
    yield from _over("index_append", plain)
    pooled = op("index_append", (value(16), CACHE, value(16), weight(4, 16)))
    yield from _over("index_append of pools", pooled)


def _compressed() -> Iterator[Entry]:
    for rate, chosen in ((0, 0), (8, 0), (4, 3)):
        spec = CompressedSpec(3, 32, window=6, rate=rate)
        picked = value(chosen, "i32") if chosen else None
        ins = (value(96), CACHE, weight(3), CACHE if rate else None, picked)
        what = op("attend_compressed", ins, (96,), spec)
        title = f"attend_compressed rate {rate}, {chosen} chosen"
        yield from _over(title, what, everywhere=rate > 0)
    for overlap in (False, True):
        compressor = CompressorSpec(4, 24, overlap, 8, 1e-6)
        width = value(compressor.width)
        weights = weight(4, compressor.width), weight(24), weight(1, 8)
        what = op("compress_append", (width, width, CACHE, *weights), (), compressor)
        kind = "overlapping" if overlap else "apart"
        yield from _over(f"compress_append {kind}", what, everywhere=overlap)
    select = SelectEntriesSpec(SelectSpec(3, 16, 5), 4)
    what = op("select_entries", (value(48), value(3), CACHE), (value(5, "i32"),), select)
    yield from _over("select_entries", what, everywhere=True)


def _states() -> Iterator[Entry]:
    for format, parts in (("f32", (40, 40, 23)), ("bf16", (64,)), ("f32", (1,))):
        taps = weight(sum(parts), 4, parts=parts)
        what = op("conv", (value(sum(parts)), taps, CACHE), parts, ConvSpec(4))
        title = f"conv {sum(parts)}, {format}"
        yield from _over(title, what, formats=(format,), everywhere=len(parts) > 1)
    for heads, size in ((2, 32), (3, 16), (1, 128)):
        x = value(heads * size)
        what = op(
            "delta", (x, x, x, x, value(heads), CACHE), (heads * size,), DeltaSpec(heads, size)
        )
        yield from _over(f"delta {heads} by {size}", what, everywhere=size == 32)
