"""Attention: grouped queries, rotation by itself, latents, and selection by an indexer."""

from __future__ import annotations

from zllm.attention.dsa import SelectSpec
from zllm.attention.gqa import GqaSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Cache, Op, Value, Weight
from zllm.rope import RotateSpec
from zllm.runtime.recorders.base import RecorderBase


class AttentionRecorder(RecorderBase):
    def rope_append(
        self, q: Value, k: Value, v: Value, cache: Cache, table: Weight, spec: GqaSpec, /
    ) -> Value:
        assert q.shape[1] == spec.heads * spec.head_size, (q, spec)
        assert k.shape[1] == v.shape[1] == spec.kv_heads * spec.head_size, (k, v, spec)
        return self.one("rope_append", (q, k, v, cache, table), q.shape, spec)

    def attend(
        self, q: Value, cache: Cache, spec: GqaSpec, /, *, sinks: Weight | None = None
    ) -> Value:
        assert sinks is None or sinks.shape == (spec.heads,), (sinks, spec)
        ins = (q, cache) if sinks is None else (q, cache, sinks)
        return self.one("attend", ins, q.shape, spec)

    def rope(self, x: Value, table: Weight, spec: RotateSpec, /) -> Value:
        assert x.shape[1] == spec.heads * spec.head_size, (x, spec)
        return self.one("rope", (x, table), x.shape, spec)

    def latent_append(self, latent: Value, k_rope: Value | None, cache: Cache, /) -> None:
        self.record("latent_append", (latent, k_rope, cache), [])

    def attend_latent(
        self, q: Value, kv_b: Weight, cache: Cache, spec: MlaSpec, /, *, chosen: Value | None = None
    ) -> Value:
        assert q.shape[1] == spec.heads * (spec.nope + spec.rotated), (q, spec)
        assert kv_b.shape == (spec.heads * (spec.nope + spec.value), spec.rank), (kv_b, spec)
        shape = (q.shape[0], spec.heads * spec.value)
        return self.one("attend_latent", (q, kv_b, cache, chosen), shape, spec)

    def index_append(
        self, k: Value, cache: Cache, /, *, gate: Value | None = None, ape: Weight | None = None
    ) -> None:
        self.record("index_append", (k, cache, gate, ape), [])

    def select(self, q: Value, head_weights: Value, cache: Cache, spec: SelectSpec, /) -> Value:
        assert q.shape[1] == spec.heads * spec.size, (q, spec)
        out = self.value((q.shape[0], spec.width), "i32")
        return self.append(Op("select", (q, head_weights, cache), (out,), spec))[0]
