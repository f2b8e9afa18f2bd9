"""Compressed attention as a sublayer (DeepSeek-V4 report, §2.3): a window, entries, an indexer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Compressed, Core, Resources, Rotary
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import EntrySpec, LatentSpec
from zllm.rope import RotateSpec


class Ops(Core, Compressed, Rotary, Protocol):
    """The capabilities that the sublayer needs."""


@dataclass(frozen=True, slots=True)
class CompressedLayer:
    """What layers and models differ in."""

    heads: CompressedSpec
    output_groups: int
    eps: float
    table: Weight  # [context, r]: the last r numbers of a head turn, in pairs (2j, 2j+1)
    index: SelectSpec | None = None  # chooses among entries of overlapping windows; None: all

    @property
    def rotated(self) -> int:
        return self.table.shape[1]


class Compressor:
    """Canonical names under `prefix`: kv gate ape norm."""

    def __init__(self, r: Resources, prefix: str, size: int, layer: CompressedLayer) -> None:
        overlap = layer.index is not None
        self.spec = CompressorSpec(layer.heads.rate, size, overlap, layer.rotated, layer.eps)
        self.kv_gate = r.weight(f"{prefix}kv", f"{prefix}gate")  # [2·width, D]
        ape = r.weight(f"{prefix}ape", read_by="compress_append")  # [m, width]
        norm = r.weight(f"{prefix}norm")  # [K]
        self.weights = ape, norm, layer.table
        self.cache = r.cache(f"{prefix}entries", EntrySpec(size, overlap))

    def __call__(self, ops: Ops, h: Value) -> Cache:
        """The entries, with those of windows that the rows h [R, D] complete."""
        kv, gate = ops.project(h, self.kv_gate)  # [R, width] each
        ops.compress_append(kv, gate, self.cache, self.weights, self.spec)
        return self.cache


class EntryIndexer:
    """The lightning indexer over entries of its own; names under `prefix`: q weights, and a
    compressor's.
    """

    def __init__(self, r: Resources, prefix: str, layer: CompressedLayer) -> None:
        assert layer.index is not None, layer
        self.spec = SelectEntriesSpec(layer.index, layer.heads.rate)
        self.q = r.weight(f"{prefix}q")  # [I·e, Q]
        self.head_weights = r.weight(f"{prefix}weights")  # [I, D]
        self.compressor = Compressor(r, prefix, layer.index.size, layer)
        self.table = layer.table

    def __call__(self, ops: Ops, h: Value, latent: Value) -> Value:
        """i32 [R, k] from the layer's normed input h [R, D] and the query latent [R, Q]."""
        index = self.spec.index
        entries = self.compressor(ops, h)
        part = last_turned(index.heads, index.size, self.table)
        q = ops.rope(ops.linear(latent, self.q), self.table, part)  # [R, I·e]
        head_weights = ops.linear(h, self.head_weights, scale=index.heads**-0.5)  # [R, I]
        return ops.select_entries(q, head_weights, entries, self.spec)


class CompressedAttention:
    """Canonical names under `prefix`: q_a q_norm q_b kv kv_norm sinks o_a o_b, and of layers with
    entries `compress.` + a compressor's, with an indexer `index.` + its own.
    """

    def __init__(self, r: Resources, prefix: str, layer: CompressedLayer) -> None:
        self.layer = layer
        self.down = r.weight(f"{prefix}q_a", f"{prefix}kv")  # [Q + K, D]
        self.q_norm = r.weight(f"{prefix}q_norm")
        self.q_b = r.weight(f"{prefix}q_b")  # [H·K, Q]
        self.kv_norm = r.weight(f"{prefix}kv_norm")
        self.sinks = r.weight(f"{prefix}sinks")  # [H]
        self.o_a = r.weight(f"{prefix}o_a")  # [G·rank, H·K / G]
        self.o_b = r.weight(f"{prefix}o_b")  # [D, G·rank]
        self.raw = r.cache(f"{prefix}kv", LatentSpec(layer.heads.size))
        compressed = layer.heads.rate > 0
        size = layer.heads.size
        self.compressor = Compressor(r, f"{prefix}compress.", size, layer) if compressed else None
        self.indexer = EntryIndexer(r, f"{prefix}index.", layer) if layer.index else None

    def __call__(self, ops: Ops, h: Value) -> Value:
        """[R, D] -> [R, D]. One head of keys serves all queries, and the keys are the values."""
        heads, eps, table = self.layer.heads, self.layer.eps, self.layer.table
        turned = last_turned(heads.heads, heads.size, table)

        latent, kv = ops.project(h, self.down)  # [R, Q], [R, K]
        latent = ops.rms_norm(latent, self.q_norm, eps)
        q = ops.unit_norm(ops.linear(latent, self.q_b), heads.size, eps)  # [R, H·K]
        q = ops.rope(q, table, turned)
        kv = ops.rope(ops.rms_norm(kv, self.kv_norm, eps), table, last_turned(1, heads.size, table))
        ops.latent_append(kv, None, self.raw)

        entries = self.compressor(ops, h) if self.compressor else None
        chosen = self.indexer(ops, h, latent) if self.indexer else None
        a = ops.attend_compressed(q, self.raw, self.sinks, heads, entries=entries, chosen=chosen)
        # Values were turned by their positions; turned back by the row's, they say how far away.
        a = ops.rope(a, table, replace(turned, inverse=True))
        return ops.linear(ops.grouped_linear(a, self.o_a, self.layer.output_groups), self.o_b)


def last_turned(heads: int, size: int, table: Weight) -> RotateSpec:
    """The last r numbers of each head."""
    rotated = table.shape[1]
    return RotateSpec(heads, size, size - rotated, rotated, interleaved=True)
