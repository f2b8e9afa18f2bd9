"""The recorder: turns one call of a decoder into the list of operations of a plan key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Cache, Group, Op, PlanKey, Recording, StepLayout, Value, Weight
from zllm.errors import BackendError
from zllm.norm import RmsNormSpec
from zllm.sampling import SampleSpec

SIDE_EFFECTS = frozenset({"rope_append", "sample", "logits"})


class Recorder:
    """Implements every capability Protocol; `missing` is the backend's word on each op."""

    def __init__(self, key: PlanKey, missing: Callable[[Op], str | None]) -> None:
        self.key = key
        self._missing = missing
        self._ops: list[Op] = []
        self._values = 0

    def finish(self, groups: Sequence[Group]) -> Recording:
        """The recorded round, without ops whose results nobody reads."""
        needed: set[int] = set()
        kept: list[Op] = []
        for op in reversed(self._ops):
            if op.name in SIDE_EFFECTS or any(out.id in needed for out in op.outs):
                needed.update(value.id for value in op.ins if isinstance(value, Value))
                kept.append(op)
        return Recording(self.key, StepLayout(self.key, groups), tuple(reversed(kept)))

    # Core

    def embed(self, table: Weight, /) -> Value:
        return self._one("embed", (table,), (self.key.rows, table.shape[1]))

    def rms_norm(self, x: Value, w: Weight, eps: float, /) -> Value:
        assert w.shape == x.shape[-1:], (w, x)
        return self._one("rms_norm", (x, w), x.shape, RmsNormSpec(eps))

    def linear(
        self, x: Value, w: Weight, /, *, bias: Weight | None = None, residual: Value | None = None
    ) -> Value:
        self._check_product(x, w)
        return self._one("linear", (x, w, bias, residual), (x.shape[0], w.shape[0]))

    def project(self, x: Value, w: Weight, /, *, bias: Weight | None = None) -> tuple[Value, ...]:
        self._check_product(x, w)
        shapes = [(x.shape[0], rows) for rows in w.parts]
        return self._record("linear", (x, w, bias, None), shapes)

    def gated_linear(
        self, x: Value, gate_up: Weight, activation: str, /, *, bias: Weight | None = None
    ) -> Value:
        self._check_product(x, gate_up)
        gate_rows, up_rows = gate_up.parts
        assert gate_rows == up_rows, gate_up
        spec = GatedSpec(activation)
        fused = Op(
            "gated_linear", (x, gate_up, bias), (self._value((x.shape[0], gate_rows)),), spec
        )
        if self._missing(fused) is None:
            self._ops.append(fused)
            return fused.outs[0]
        gate, up = self.project(x, gate_up, bias=bias)
        return self._one("gated", (gate, up), gate.shape, spec)

    def emit(self, x: Value, norm: Weight, head: Weight, eps: float, /) -> None:
        if self.key.emit == "none":
            return
        if self.key.emit == "logits":
            logits = self.linear(self.rms_norm(x, norm, eps), head)
            self._record("logits", (logits,), [])
            return
        if self.key.rows != self.key.seqs:
            x = self._one("last_rows", (x,), (self.key.seqs, x.shape[1]))
        logits = self.linear(self.rms_norm(x, norm, eps), head)
        full = self.key.sampler == "full"
        spec = SampleSpec(logits.shape[1], full, self.key.top_logprobs)
        self._record("sample", (logits,), [], spec)

    # Gqa

    def rope_append(
        self, q: Value, k: Value, v: Value, cache: Cache, table: Weight, spec: GqaSpec, /
    ) -> Value:
        assert q.shape[1] == spec.heads * spec.head_size, (q, spec)
        assert k.shape[1] == v.shape[1] == spec.kv_heads * spec.head_size, (k, v, spec)
        return self._one("rope_append", (q, k, v, cache, table), q.shape, spec)

    def attend(self, q: Value, cache: Cache, spec: GqaSpec, /) -> Value:
        return self._one("attend", (q, cache), q.shape, spec)

    def _check_product(self, x: Value, w: Weight) -> None:
        assert len(w.shape) == 2 and x.shape[-1] == w.shape[1], (x, w)

    def _one(self, name: str, ins: Any, shape: tuple[int, ...], spec: Any = None) -> Value:
        return self._record(name, ins, [shape], spec)[0]

    def _record(
        self, name: str, ins: Any, shapes: Sequence[tuple[int, ...]], spec: Any = None
    ) -> tuple[Value, ...]:
        op = Op(name, ins, tuple(self._value(shape) for shape in shapes), spec)
        reason = self._missing(op)
        if reason is not None:
            shown = [getattr(operand, "shape", None) for operand in ins]
            raise BackendError(f"the backend cannot run {name} on shapes {shown}: {reason}")
        self._ops.append(op)
        return op.outs

    def _value(self, shape: tuple[int, ...]) -> Value:
        self._values += 1
        return Value(self._values - 1, shape)


def emit_nothing(key: PlanKey) -> PlanKey:
    """The same round as a chunk that is not the last."""
    return replace(key, emit="none", sampler="greedy", top_logprobs=-1)
