"""An entry of the catalogue: an op, exactly as wide as it says, and the rounds it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zllm.backend.contract import Cache, Op, Value, Weight
from zllm.backend.selftest.build import Operand, Rounds
from zllm.backend.selftest.case import Case, Dtype
from zllm.backend.selftest.cases import build

CACHE = Cache("", "")  # which a case makes itself


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # of the op and what is special
    op: Op
    rounds: Rounds
    formats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    norm: Op | None = None
    banks: Mapping[str, int] = field(default_factory=dict)  # that matrices of experts lie in

    def case(self) -> Case:
        return build(
            self.op,
            self.rounds,
            self.name,
            formats=self.formats,
            norm=self.norm,
            banks=self.banks,
        )


def value(width: int, dtype: Dtype = "f32") -> Value:
    """Rows come with the rounds."""
    return Value(0, (0, width), dtype)


def weight(*shape: int, parts: tuple[int, ...] = ()) -> Weight:
    return Weight("w", shape, parts or shape[:1])


def op(
    name: str, ins: Sequence[Operand], widths: Sequence[int | Value] = (), spec: Any = None
) -> Op:
    outs = tuple(value(width) if isinstance(width, int) else width for width in widths)
    return Op(name, tuple(ins), outs, spec)
