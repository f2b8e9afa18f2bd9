"""What a model may ask of a backend: one Protocol per domain capability, in the words of its spec.

A decoder *records*: it is called once per plan key with a recorder and returns symbolic `Value`s. A
model states exactly the set of Protocols it needs; one recorder implements all of them.

Axes: R rows of a round, D width, H query heads, G key/value heads, K head size, F feed-forward
width, N rows of a matrix, V vocabulary, E experts. Results are f32 unless said otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zllm.backend.contract import Cache, Value, Weight

if TYPE_CHECKING:
    from zllm.activation import GatedSpec
    from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
    from zllm.attention.dsa import SelectSpec
    from zllm.attention.gqa import GqaSpec
    from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
    from zllm.attention.mla import MlaSpec
    from zllm.hyper_connection import HyperSpec
    from zllm.kv_cache.spec import CacheSpec
    from zllm.moe.experts import ExpertsSpec
    from zllm.moe.routing import RouteSpec
    from zllm.rope import RopeSpec, RotateSpec


Qkv = tuple[Value, Value, Value]


class Resources(Protocol):
    """What a decoder asks for once, when it is built: resident weights and caches."""

    def weight(
        self, *names: str, parts: tuple[int, ...] = (), read_by: str = "", together: int = 1
    ) -> Weight:
        """The tensors `names` (canonical names), joined row after row.

        `parts`: cut the rows so for `project`; without it each name is a part. `read_by`: the op
        that reads a matrix, if it is not one of the products. `together`: so many rows, as those
        of one expert, are not to be parted where a device needs several buffers.
        """
        ...

    def rope_table(self, spec: RopeSpec, /) -> Weight:
        """cos and sin per position and pair: [context, r]. Oracle: zllm.rope.table.

        With `spec.long_divisors` a second part for sequences whose step flags say LONG.
        """
        ...

    def cache(self, name: str, spec: CacheSpec, /) -> Cache: ...


class Core(Protocol):
    """What every model needs."""

    def embed(self, table: Weight, /, *, scale: float = 1.0) -> Value:
        """Rows of `table` [V, D] for the round's tokens, times `scale`: [R, D]."""
        ...

    def rms_norm(self, x: Value, w: Weight, eps: float, /, *, offset: float = 0.0) -> Value:
        """Normalise each run of len(w) of the last axis; the factor is w + offset."""
        ...

    def layer_norm(self, x: Value, w: Weight, b: Weight, eps: float, /) -> Value:
        """Normalise each run of len(w) of the last axis by mean and biased variance."""
        ...

    def linear(
        self,
        x: Value,
        w: Weight,
        /,
        *,
        bias: Weight | None = None,
        residual: Value | None = None,
        scale: float = 1.0,
    ) -> Value:
        """scale · (x·wᵀ + bias) + residual: [R, D] -> [R, N]."""
        ...

    def project(self, x: Value, w: Weight, /, *, bias: Weight | None = None) -> tuple[Value, ...]:
        """One product with every matrix joined in `w`: [R, D] -> ([R, N0], [R, N1], …)."""
        ...

    def gated_linear(
        self, x: Value, gate_up: Weight, spec: GatedSpec, /, *, bias: Weight | None = None
    ) -> Value:
        """activation(x·gateᵀ) ⊙ (x·upᵀ): [R, D] -> [R, F]. `gate_up` joins two of F rows."""
        ...

    def add(self, x: Value, y: Value, /) -> Value:
        """x + y."""
        ...

    def emit(
        self,
        x: Value,
        norm: Weight,
        head: Weight,
        eps: float,
        /,
        *,
        offset: float = 0.0,
        scale: float = 1.0,
        soft_cap: float = 0.0,
    ) -> None:
        """What the plan key asks for: nothing, a token per sequence, or every row's logits.

        logits = scale · rms_norm(x)·headᵀ, then c·tanh(logits / c) if `soft_cap` c is set.
        """
        ...


class Gqa(Protocol):
    """Grouped-query attention over a paged key/value cache."""

    def rope_append(
        self, q: Value, k: Value, v: Value, cache: Cache, table: Weight, spec: GqaSpec, /
    ) -> Value:
        """Rotate q and k, write k and v to the round's slots; returns q rotated: [R, H*K]."""
        ...

    def attend(
        self, q: Value, cache: Cache, spec: GqaSpec, /, *, sinks: Weight | None = None
    ) -> Value:
        """[R, H*K] -> [R, H*K]. A row sees its sequence's slots up to its own position.

        sinks [H]: a logit per head that joins the softmax and is dropped.
        """
        ...


class Rotary(Protocol):
    """RoPE by itself, where it is not part of an append."""

    def rope(self, x: Value, table: Weight, spec: RotateSpec, /) -> Value:
        """Turn a range of each head by its row's position: the same shape."""
        ...


class Latents(Protocol):
    """One vector per token that all heads share."""

    def latent_append(self, latent: Value, k_rope: Value | None, cache: Cache, /) -> None:
        """Write [latent | rotated key] of each row to its slot."""
        ...


class Mla(Latents, Protocol):
    """Multi-head latent attention [2405.04434] over a cache of latents."""

    def attend_latent(
        self, q: Value, kv_b: Weight, cache: Cache, spec: MlaSpec, /, *, chosen: Value | None = None
    ) -> Value:
        """[R, H*(n+r)] -> [R, H*v]. `chosen` i32 [R, k]: the only positions a row sees, -1 none."""
        ...


class Dsa(Protocol):
    """Sparse attention by an indexer [2512.02556], over keys or over pools of keys."""

    def index_append(
        self, k: Value, cache: Cache, /, *, gate: Value | None = None, ape: Weight | None = None
    ) -> None:
        """Write each row's index key [R, e]; with pools also its gate, and a closed pool's key."""
        ...

    def select(self, q: Value, head_weights: Value, cache: Cache, spec: SelectSpec, /) -> Value:
        """[R, I*e], [R, I] -> i32 [R, k]: chosen positions in ascending order, -1 padded."""
        ...


class Compressed(Latents, Protocol):
    """Attention over a window of raw keys and compressed entries of the past.

    Keys, one head for all, are the values too; the raw ones are appended as latents.
    """

    def unit_norm(self, x: Value, size: int, eps: float, /) -> Value:
        """RMSNorm without a weight, of each run of `size` numbers: the same shape."""
        ...

    def compress_append(
        self,
        kv: Value,
        gate: Value,
        cache: Cache,
        weights: tuple[Weight, Weight, Weight],
        spec: CompressorSpec,
        /,
    ) -> None:
        """Write each row's key and gate [R, width], and the entries of windows that rows complete.

        weights: ape [m, width], norm [K], RoPE table. Cache: EntrySpec.
        """
        ...

    def select_entries(
        self, q: Value, head_weights: Value, cache: Cache, spec: SelectEntriesSpec, /
    ) -> Value:
        """[R, I*e], [R, I] -> i32 [R, k]: chosen entries in ascending order, -1 padded."""
        ...

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
        """[R, H*K] -> [R, H*K], not turned back. Every row sees its window, and of the entries
        that end at or before it all, or those `chosen` i32 [R, k].
        """
        ...

    def grouped_linear(self, x: Value, w: Weight, groups: int, /) -> Value:
        """Group g of x's columns times group g of w's rows: [R, G*C], [G*N, C] -> [R, G*N]."""
        ...


class Kda(Protocol):
    """KDA [2510.26692]: a short convolution and a gated delta rule."""

    def conv(self, x: Value, w: Weight, cache: Cache, spec: ConvSpec, /) -> tuple[Value, ...]:
        """Depthwise causal convolution over time, then SiLU: [R, C], w [C, kernel] -> [R, C],
        cut into the parts of w. Cache: StateSpec (kernel - 1, C), the last inputs.
        """
        ...

    def decay(self, a: Value, a_log: Weight, dt_bias: Weight, spec: DecaySpec, /) -> Value:
        """Log decay per key channel: [R, H*d] -> [R, H*d], none above 0."""
        ...

    def delta(
        self,
        qkv: Qkv,
        g: Value,
        beta: Value,
        cache: Cache,
        spec: DeltaSpec,
        /,
    ) -> Value:
        """The gated delta rule: q, k, v, log decay g [R, H*d], beta [R, H] before σ -> [R, H*d].

        Cache: StateSpec (H, d of keys, d of values).
        """
        ...

    def gated_norm(self, x: Value, gate: Value, w: Weight, eps: float, /) -> Value:
        """rms_norm of each head of x ⊙ σ(gate): [R, H*d], w [d]."""
        ...


class Moe(Protocol):
    """Mixture of experts: routing and the chosen experts' products."""

    def route(
        self, logits: Value, spec: RouteSpec, /, *, bias: Weight | None = None
    ) -> tuple[Value, Value]:
        """[R, E] -> ids i32 [R, k], weights [R, k]. `bias` [E] picks experts, it does not weigh."""
        ...

    def route_by_token(
        self, logits: Value, table: Weight, spec: RouteSpec, /
    ) -> tuple[Value, Value]:
        """As `route`, the experts of a row taken from `table` [V, k] by its token id."""
        ...

    def experts(
        self,
        x: Value,
        routed: tuple[Value, Value],
        gate_up: Weight,
        down: Weight,
        spec: ExpertsSpec,
        /,
        *,
        biases: tuple[Weight, Weight] | None = None,
    ) -> Value:
        """Σ weight · down_e(gated(x·gate_up_eᵀ)): [R, D]. gate_up [E*2F, D], down [E*D, F]."""
        ...


class Hyper(Protocol):
    """Manifold-constrained hyper-connections [2512.24880]: N residual streams of width D."""

    def hc_start(self, x: Value, spec: HyperSpec, /) -> Value:
        """Every stream begins as the embedding: [R, D] -> [R, N*D]."""
        ...

    def hc_split(
        self, x: Value, fn: Weight, base: Weight, scale: Weight, spec: HyperSpec, /
    ) -> tuple[Value, Value, Value]:
        """[R, N*D] -> the sublayer's input [R, D], post [R, N], comb [R, N*N]."""
        ...

    def hc_join(self, f: Value, x: Value, post: Value, comb: Value, /) -> Value:
        """The sublayer's output f spread by post, plus the streams mixed by combᵀ: [R, N*D]."""
        ...

    def hc_mean(self, x: Value, spec: HyperSpec, /) -> Value:
        """[R, N*D] -> [R, D]."""
        ...

    def hc_head(
        self, x: Value, fn: Weight, base: Weight, scale: Weight, spec: HyperSpec, /
    ) -> Value:
        """A learned mean of the streams: [R, N*D] -> [R, D]."""
        ...
