"""KDA as a sublayer [2510.26692]: projections, short convolution, decay, delta rule, gated norm."""

from __future__ import annotations

from typing import Protocol

from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
from zllm.backend.capability import Core, Kda, Resources
from zllm.backend.contract import Value
from zllm.kv_cache.spec import StateSpec
from zllm.model_spec.linear_attention import LinearAttention


class Ops(Core, Kda, Protocol):
    """The capabilities that the sublayer needs."""


class DeltaAttention:
    """Canonical names under `prefix`: q k v, q_conv k_conv v_conv, decay_a decay_b decay_rate

    decay_bias, write, gate_a gate_b, o_norm, o.
    """

    def __init__(
        self, resources: Resources, prefix: str, sizes: LinearAttention, eps: float
    ) -> None:
        heads, size = sizes.heads, sizes.head_size

        def joined(*names: str) -> tuple[str, ...]:
            return tuple(prefix + name for name in names)

        r = resources
        self.eps = eps
        self.conv = ConvSpec(sizes.kernel)
        self.decay = DecaySpec(heads, size, sizes.lower_bound)
        self.delta = DeltaSpec(heads, size)
        self.qkv = r.weight(*joined("q", "k", "v"))  # [3·H·d, D]
        taps = joined("q_conv", "k_conv", "v_conv")
        self.taps = r.weight(*taps, read_by="conv")  # [3·H·d, kernel]
        self.gates = r.weight(*joined("decay_a", "gate_a", "write"))  # [d + d + H, D]
        self.decay_b = r.weight(f"{prefix}decay_b")  # [H·d, d]
        self.decay_bias = r.weight(f"{prefix}decay_bias")  # [H·d]
        self.decay_rate = r.weight(f"{prefix}decay_rate")  # [H], its logarithm
        self.gate_b = r.weight(f"{prefix}gate_b")  # [H·d, d]
        self.o_norm = r.weight(f"{prefix}o_norm")  # [d], of each head
        self.o = r.weight(f"{prefix}o")  # [D, H·d]
        self.inputs = r.cache(f"{prefix}conv", StateSpec((sizes.kernel - 1, 3 * heads * size)))
        self.state = r.cache(f"{prefix}state", StateSpec((heads, size, size)))

    def __call__(self, ops: Ops, h: Value, *, residual: Value | None = None) -> Value:
        """attention(h) + residual: [R, D]. The sequences' states go on by their rows."""
        q, k, v = ops.conv(ops.linear(h, self.qkv), self.taps, self.inputs, self.conv)
        a, gate, beta = ops.project(h, self.gates)  # [R, d], [R, d], [R, H]
        a = ops.linear(a, self.decay_b)  # [R, H·d]
        g = ops.decay(a, self.decay_rate, self.decay_bias, self.decay)
        o = ops.delta((q, k, v), g, beta, self.state, self.delta)
        o = ops.gated_norm(o, ops.linear(gate, self.gate_b), self.o_norm, self.eps)
        return ops.linear(o, self.o, residual=residual)
