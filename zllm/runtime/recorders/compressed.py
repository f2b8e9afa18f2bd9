"""Attention over a window and compressed entries, and what only it needs."""

from __future__ import annotations

from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.backend.contract import Cache, Op, Value, Weight
from zllm.linear import GroupedLinearSpec
from zllm.norm import UnitNormSpec
from zllm.runtime.recorders.base import RecorderBase


class CompressedRecorder(RecorderBase):
    def unit_norm(self, x: Value, size: int, eps: float, /) -> Value:
        assert x.shape[1] % size == 0, (x, size)
        return self.one("unit_norm", (x,), x.shape, UnitNormSpec(size, eps))

    def compress_append(
        self,
        kv: Value,
        gate: Value,
        cache: Cache,
        weights: tuple[Weight, Weight, Weight],
        spec: CompressorSpec,
        /,
    ) -> None:
        ape, norm, _ = weights
        assert kv.shape == gate.shape and kv.shape[1] == spec.width, (kv, gate, spec)
        assert ape.shape == (spec.rate, spec.width) and norm.shape == (spec.size,), (weights, spec)
        self.record("compress_append", (kv, gate, cache, *weights), [], spec)

    def select_entries(
        self, q: Value, head_weights: Value, cache: Cache, spec: SelectEntriesSpec, /
    ) -> Value:
        assert q.shape[1] == spec.index.heads * spec.index.size, (q, spec)
        out = self.value((q.shape[0], spec.index.top_k), "i32")
        return self.append(Op("select_entries", (q, head_weights, cache), (out,), spec))[0]

    def attend_compressed(
        self,
        q: Value,
        raw: Cache,
        sinks: Weight,
        spec: CompressedSpec,
        /,
        *,
        entries: Cache | None = None,
        chosen: Value | None = None,
    ) -> Value:
        assert q.shape[1] == spec.heads * spec.size and sinks.shape == (spec.heads,), (q, spec)
        assert (entries is None) == (spec.rate == 0), (entries, spec)
        return self.one("attend_compressed", (q, raw, sinks, entries, chosen), q.shape, spec)

    def grouped_linear(self, x: Value, w: Weight, groups: int, /) -> Value:
        assert x.shape[1] == groups * w.shape[1] and w.shape[0] % groups == 0, (x, w, groups)
        shape = (x.shape[0], w.shape[0])
        return self.one("grouped_linear", (x, w), shape, GroupedLinearSpec(groups))
