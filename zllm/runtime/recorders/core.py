"""Core: embedding, norms, products, gates, and what a round emits."""

from __future__ import annotations

from zllm.activation import GatedSpec, SoftCapSpec
from zllm.backend.contract import Op, Value, Weight
from zllm.linear import LinearSpec
from zllm.norm import LayerNormSpec, RmsNormSpec
from zllm.runtime.recorders.base import RecorderBase, check_product
from zllm.sampling import SampleSpec


class CoreRecorder(RecorderBase):
    def embed(self, table: Weight, /, *, scale: float = 1.0) -> Value:
        spec = None if scale == 1.0 else LinearSpec(scale)
        return self.one("embed", (table,), (self.key.rows, table.shape[1]), spec)

    def rms_norm(self, x: Value, w: Weight, eps: float, /, *, offset: float = 0.0) -> Value:
        assert x.shape[-1] % w.shape[0] == 0, (w, x)
        return self.one("rms_norm", (x, w), x.shape, RmsNormSpec(eps, offset))

    def layer_norm(self, x: Value, w: Weight, b: Weight, eps: float, /) -> Value:
        assert x.shape[-1] % w.shape[0] == 0 and w.shape == b.shape, (w, b, x)
        return self.one("layer_norm", (x, w, b), x.shape, LayerNormSpec(eps))

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
        check_product(x, w)
        spec = None if scale == 1.0 else LinearSpec(scale)
        return self.one("linear", (x, w, bias, residual), (x.shape[0], w.shape[0]), spec)

    def project(self, x: Value, w: Weight, /, *, bias: Weight | None = None) -> tuple[Value, ...]:
        check_product(x, w)
        shapes = [(x.shape[0], rows) for rows in w.parts]
        return self.record("linear", (x, w, bias, None), shapes)

    def gated_linear(
        self, x: Value, gate_up: Weight, spec: GatedSpec, /, *, bias: Weight | None = None
    ) -> Value:
        check_product(x, gate_up)
        gate_rows, up_rows = gate_up.parts
        assert gate_rows == up_rows, gate_up
        fused = Op("gated_linear", (x, gate_up, bias), (self.value((x.shape[0], gate_rows)),), spec)
        if self.refusal(fused) is None:
            return self.append(fused)[0]
        gate, up = self.project(x, gate_up, bias=bias)
        return self.one("gated", (gate, up), gate.shape, spec)

    def add(self, x: Value, y: Value, /) -> Value:
        assert x.shape == y.shape, (x, y)
        return self.one("add", (x, y), x.shape)

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
        if self.key.emit == "none":
            return
        if self.key.emit == "token" and self.key.rows != self.key.seqs:
            x = self.one("last_rows", (x,), (self.key.seqs, x.shape[1]))
        logits = self.linear(self.rms_norm(x, norm, eps, offset=offset), head, scale=scale)
        if soft_cap:
            logits = self.one("soft_cap", (logits,), logits.shape, SoftCapSpec(soft_cap))
        if self.key.emit == "logits":
            self.record("logits", (logits,), [])
            return
        full = self.key.sampler == "full"
        spec = SampleSpec(logits.shape[1], full, self.key.top_logprobs)
        self.record("sample", (logits,), [], spec)
