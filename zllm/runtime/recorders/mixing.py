"""What mixes tokens or streams without attention: delta rule, experts, hyper-connections."""

from __future__ import annotations

from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
from zllm.backend.capability import Qkv
from zllm.backend.contract import Cache, Op, Value, Weight
from zllm.hyper_connection import HyperSpec
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.norm import RmsNormSpec
from zllm.runtime.recorders.base import RecorderBase


class KdaRecorder(RecorderBase):
    def conv(self, x: Value, w: Weight, cache: Cache, spec: ConvSpec, /) -> tuple[Value, ...]:
        assert w.shape == (x.shape[1], spec.kernel), (x, w, spec)
        shapes = [(x.shape[0], channels) for channels in w.parts]
        return self.record("conv", (x, w, cache), shapes, spec)

    def decay(self, a: Value, a_log: Weight, dt_bias: Weight, spec: DecaySpec, /) -> Value:
        assert a.shape[1] == spec.heads * spec.head_size, (a, spec)
        return self.one("decay", (a, a_log, dt_bias), a.shape, spec)

    def delta(
        self,
        qkv: Qkv,
        g: Value,
        beta: Value,
        cache: Cache,
        spec: DeltaSpec,
        /,
    ) -> Value:
        assert all(x.shape == g.shape for x in qkv), (qkv, g)
        assert beta.shape[1] == spec.heads, (beta, spec)
        return self.one("delta", (*qkv, g, beta, cache), g.shape, spec)

    def gated_norm(self, x: Value, gate: Value, w: Weight, eps: float, /) -> Value:
        assert x.shape == gate.shape and x.shape[1] % w.shape[0] == 0, (x, gate, w)
        return self.one("gated_norm", (x, gate, w), x.shape, RmsNormSpec(eps))


class MoeRecorder(RecorderBase):
    def route(
        self, logits: Value, spec: RouteSpec, /, *, bias: Weight | None = None
    ) -> tuple[Value, Value]:
        return self._route("route", logits, bias, spec)

    def route_by_token(
        self, logits: Value, table: Weight, spec: RouteSpec, /
    ) -> tuple[Value, Value]:
        return self._route("route_by_token", logits, table, spec)

    def _route(
        self, name: str, logits: Value, weight: Weight | None, spec: RouteSpec
    ) -> tuple[Value, Value]:
        shape = (logits.shape[0], spec.top_k)
        outs = self.value(shape, "i32"), self.value(shape)
        ids, weights = self.append(Op(name, (logits, weight), outs, spec))
        return ids, weights

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
        assert gate_up.shape[0] == 2 * spec.experts * spec.width, (gate_up, spec)
        assert down.shape == (spec.experts * x.shape[1], spec.width), (down, spec)
        ins = (x, *routed, gate_up, down, *(biases or (None, None)))
        return self.one("experts", ins, x.shape, spec)


class HyperRecorder(RecorderBase):
    def hc_start(self, x: Value, spec: HyperSpec, /) -> Value:
        return self.one("hc_start", (x,), (x.shape[0], spec.streams * x.shape[1]), spec)

    def hc_split(
        self, x: Value, fn: Weight, base: Weight, scale: Weight, spec: HyperSpec, /
    ) -> tuple[Value, Value, Value]:
        rows, n = x.shape[0], spec.streams
        shapes = ((rows, x.shape[1] // n), (rows, n), (rows, n * n))
        h, post, comb = self.record("hc_split", (x, fn, base, scale), shapes, spec)
        return h, post, comb

    def hc_join(self, f: Value, x: Value, post: Value, comb: Value, /) -> Value:
        return self.one("hc_join", (f, x, post, comb), x.shape)

    def hc_mean(self, x: Value, spec: HyperSpec, /) -> Value:
        return self.one("hc_mean", (x,), (x.shape[0], x.shape[1] // spec.streams), spec)

    def hc_head(
        self, x: Value, fn: Weight, base: Weight, scale: Weight, spec: HyperSpec, /
    ) -> Value:
        shape = (x.shape[0], x.shape[1] // spec.streams)
        return self.one("hc_head", (x, fn, base, scale), shape, spec)
