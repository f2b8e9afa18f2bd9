"""Multi-head latent attention as a sublayer [2405.04434]: query, latent, rotation, output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.attention.mla import MlaSpec
from zllm.backend.capability import Core, Mla, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.kv_cache.spec import LatentSpec
from zllm.model_spec.latent import Latent
from zllm.rope import RotateSpec


class Ops(Core, Mla, Rotary, Protocol):
    """The capabilities that the sublayer needs; Rotary only where the r part turns."""


@dataclass(frozen=True, slots=True)
class Rotation:
    table: Weight  # [context, r]
    interleaved: bool


@dataclass(frozen=True, slots=True)
class MlaLayer:
    """What the models' sublayers differ in."""

    heads: MlaSpec
    query_rank: int  # of the query's own latent, q_lora_rank; 0: straight from the input
    eps: float  # of the norms of both latents
    rotation: Rotation | None  # of the r part; None: there is none, or it does not turn
    bias: bool = False  # on q_a, kv_a and o


def mla_spec(latent: Latent, heads: int, *, score_factor: float = 1.0) -> MlaSpec:
    """Scores are divided by the root of a head's whole size, also where its r part is not turned.

    score_factor: of YaRN, `Rope.score_factor`.
    """
    n, r = latent.nope, latent.rotated
    return MlaSpec(heads, n, r, latent.value, latent.rank, (n + r) ** -0.5 * score_factor)


@dataclass(frozen=True, slots=True)
class Query:
    heads: Value  # [R, H·(n+r)], its r part turned
    latent: Value  # what the heads unfold from: the normed query latent [R, Q], else the input


class LatentAttention:
    """Canonical names under `prefix`: q_a q_norm q_b, or q; kv_a kv_norm kv_b o.

    `sublayer(ops, h)` is dense attention. Sparse attention chooses in between:

        query = sublayer.query(ops, h)
        chosen = indexer(ops, h, query.latent)
        x = sublayer.attend(ops, query, chosen=chosen, residual=x)
    """

    def __init__(self, resources: Resources, prefix: str, spec: MlaLayer) -> None:
        r, heads = resources, spec.heads
        self.spec = spec
        down = ("q_a", "kv_a") if spec.query_rank else ("kv_a",)  # both read the same input
        parts = (spec.query_rank, heads.rank, heads.rotated)
        names = [prefix + name for name in down]
        self.down = r.weight(*names, parts=tuple(rows for rows in parts if rows))
        self.down_bias = r.weight(*(f"{name}.bias" for name in names)) if spec.bias else None
        self.q_norm = r.weight(f"{prefix}q_norm") if spec.query_rank else None
        self.q = r.weight(prefix + ("q_b" if spec.query_rank else "q"))  # [H·(n+r), Q or D]
        self.kv_norm = r.weight(f"{prefix}kv_norm")
        self.kv_b = r.weight(f"{prefix}kv_b")  # [H·(n+v), R]
        self.o = r.weight(f"{prefix}o")  # [D, H·v]
        self.o_bias = r.weight(f"{prefix}o.bias") if spec.bias else None
        self.cache = r.cache(f"{prefix}latent", LatentSpec(heads.rank + heads.rotated))

    def __call__(
        self, ops: Ops, h: Value, *, residual: Value | None = None, scale: float = 1.0
    ) -> Value:
        """scale · attention(h) + residual, every row over all positions up to its own: [R, D]."""
        return self.attend(ops, self.query(ops, h), residual=residual, scale=scale)

    def query(self, ops: Ops, h: Value) -> Query:
        """The rows' queries; their latents and rotated keys go to the cache."""
        spec, parts = self.spec, list(ops.project(h, self.down, bias=self.down_bias))
        latent = h
        if self.q_norm is not None:
            latent = ops.rms_norm(parts.pop(0), self.q_norm, spec.eps)  # [R, Q]
        c = ops.rms_norm(parts.pop(0), self.kv_norm, spec.eps)
        k_rope = self._turned(ops, parts.pop(), 1, 0) if parts else None  # one for all heads
        ops.latent_append(c, k_rope, self.cache)
        q = ops.linear(latent, self.q)
        return Query(self._turned(ops, q, spec.heads.heads, spec.heads.nope), latent)

    def attend(
        self,
        ops: Ops,
        query: Query,
        *,
        chosen: Value | None = None,
        residual: Value | None = None,
        scale: float = 1.0,
    ) -> Value:
        """Over the positions `chosen` for each row, or all up to its own: [R, D]."""
        a = ops.attend_latent(query.heads, self.kv_b, self.cache, self.spec.heads, chosen=chosen)
        return ops.linear(a, self.o, bias=self.o_bias, residual=residual, scale=scale)

    def _turned(self, ops: Ops, x: Value, heads: int, first: int) -> Value:
        """The last r numbers of each head turned by position."""
        rotation, r = self.spec.rotation, self.spec.heads.rotated
        if rotation is None:
            return x
        part = RotateSpec(heads, first + r, first, r, rotation.interleaved)
        return ops.rope(x, rotation.table, part)
