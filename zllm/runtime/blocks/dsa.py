"""The indexer of sparse attention [2512.02556]: which positions each row attends to."""

from __future__ import annotations

from typing import Protocol

from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Core, Dsa, Resources, Rotary
from zllm.backend.contract import Value
from zllm.kv_cache.spec import IndexSpec
from zllm.rope import RotateSpec
from zllm.runtime.blocks.mla import Rotation

# LayerNorm of index keys: transformers, models/deepseek_v32, whatever the config says.
KEY_EPS = 1e-6


class Ops(Core, Dsa, Rotary, Protocol):
    """The capabilities that an indexer needs; Rotary only where its queries and keys turn."""


class Indexer:
    """Canonical names under `prefix`: index.q index.k index.k_norm index.k_norm.bias index.weights,

    with pools of keys also index.gate [e, D] and index.ape [P, e].
    """

    def __init__(
        self, resources: Resources, prefix: str, spec: SelectSpec, rotation: Rotation | None
    ) -> None:
        r = resources
        self.spec = spec
        self.rotation = rotation  # of the first r numbers of queries and keys
        self.q = r.weight(f"{prefix}index.q")  # [I·e, Q]
        self.k = r.weight(f"{prefix}index.k")  # [e, D]
        self.k_norm = r.weight(f"{prefix}index.k_norm")
        self.k_norm_bias = r.weight(f"{prefix}index.k_norm.bias")
        self.head_weights = r.weight(f"{prefix}index.weights")  # [I, D]
        pooled = spec.pool > 1
        self.gate = r.weight(f"{prefix}index.gate") if pooled else None
        self.ape = r.weight(f"{prefix}index.ape", read_by="index_append") if pooled else None
        self.cache = r.cache(f"{prefix}index", IndexSpec(spec.size, spec.pool))

    def __call__(self, ops: Ops, h: Value, latent: Value) -> Value:
        """i32 [R, width] from the layer's normed input h [R, D] and the query latent [R, Q].

        The rows' index keys go to the cache.
        """
        heads, head_scale = self.spec.heads, self.spec.heads**-0.5
        k = ops.layer_norm(ops.linear(h, self.k), self.k_norm, self.k_norm_bias, KEY_EPS)
        gate = None if self.gate is None else ops.linear(h, self.gate)
        ops.index_append(self._turned(ops, k, 1), self.cache, gate=gate, ape=self.ape)
        q = self._turned(ops, ops.linear(latent, self.q), heads)  # [R, I·e]
        head_weights = ops.linear(h, self.head_weights, scale=head_scale)  # [R, I]
        return ops.select(q, head_weights, self.cache, self.spec)

    def _turned(self, ops: Ops, x: Value, heads: int) -> Value:
        """The first r numbers of each head turned by position."""
        if self.rotation is None:
            return x
        rotated = self.rotation.table.shape[1]
        part = RotateSpec(heads, self.spec.size, 0, rotated, self.rotation.interleaved)
        return ops.rope(x, self.rotation.table, part)
