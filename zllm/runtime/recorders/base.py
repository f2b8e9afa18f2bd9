"""The list under construction: numbers values, asks the backend about each op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zllm.backend.contract import Group, Op, PlanKey, Recording, StepLayout, Value, Weight
from zllm.errors import BackendError

# Ops that matter without a result that anybody reads: they write caches, records or logits.
SIDE_EFFECTS = frozenset(
    {
        "rope_append",
        "latent_append",
        "index_append",
        "compress_append",
        "conv",
        "delta",
        "sample",
        "logits",
    }
)


class RecorderBase:
    """`missing` is the backend's word on each op: None, or the reason why it cannot run it."""

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

    def one(self, name: str, ins: Any, shape: tuple[int, ...], spec: Any = None) -> Value:
        return self.record(name, ins, [shape], spec)[0]

    def record(
        self, name: str, ins: Any, shapes: Sequence[tuple[int, ...]], spec: Any = None
    ) -> tuple[Value, ...]:
        return self.append(Op(name, ins, tuple(self.value(shape) for shape in shapes), spec))

    def append(self, op: Op) -> tuple[Value, ...]:
        """BackendError naming op, shapes and reason if the backend cannot run it."""
        reason = self.refusal(op)
        if reason is not None:
            shown = [getattr(operand, "shape", None) for operand in op.ins]
            raise BackendError(f"the backend cannot run {op.name} on shapes {shown}: {reason}")
        self._ops.append(op)
        return op.outs

    def refusal(self, op: Op) -> str | None:
        return self._missing(op)

    def value(self, shape: tuple[int, ...], dtype: Any = "f32") -> Value:
        self._values += 1
        return Value(self._values - 1, shape, dtype)


def check_product(x: Value, w: Weight) -> None:
    assert len(w.shape) == 2 and x.shape[-1] == w.shape[1], (x, w)
