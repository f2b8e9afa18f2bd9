"""The same op with smaller shapes: what a kernel is specialised by stays, what it loops over goes.

Head sizes, remainders of widths and formats stay; there are fewer heads, columns, rows of
matrices, experts and chosen positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zllm.backend.contract import Op, Value, Weight

BLOCK = 256  # columns: a multiple of every format's block
TILE = 64  # rows of a matrix


@dataclass(frozen=True, slots=True)
class Size:
    """The most of each; widths keep their remainders, so they may be almost a block more."""

    rows: int = 8  # of a prefill round
    seqs: int = 3
    history: int = 37  # tokens cached before a decode round
    columns: int = BLOCK
    matrix_rows: int = TILE
    heads: int = 4
    experts: int = 8
    chosen: int = 12  # positions; of entries there are fewer
    chosen_entries: int = 2
    window: int = 20
    rate: int = 16  # tokens per compressed entry
    vocabulary: int = 2048

    def width(self, columns: int) -> int:
        return fewer(columns, self.columns, BLOCK)

    def height(self, rows: int) -> int:
        return fewer(rows, self.matrix_rows, TILE)


SMALL = Size()


def fewer(count: int, most: int, step: int) -> int:
    """At most `most` + step - 1, the same modulo `step`."""
    return count if count < most + step else most + count % step


def wide(value: Value, columns: int) -> Value:
    return replace(value, shape=(value.shape[0], columns))


def shaped(weight: Weight, *shape: int, parts: Sequence[int] = ()) -> Weight:
    return Weight(weight.name, shape, tuple(parts) or shape[:1])


def mapped(op: Op, widths: Mapping[int, int], spec: Any = None) -> Op:
    """Values [R, D], vectors [D] and columns of matrices, of every D that `widths` names."""

    def operand(x: Any) -> Any:
        if isinstance(x, Value):
            return wide(x, widths.get(x.shape[1], x.shape[1]))
        if isinstance(x, Weight):
            last = widths.get(x.shape[-1], x.shape[-1])
            return shaped(x, *x.shape[:-1], last, parts=x.parts if len(x.shape) > 1 else ())
        return x

    outs = tuple(map(operand, op.outs))
    return replace(op, ins=tuple(map(operand, op.ins)), outs=outs, spec=spec or op.spec)


def columns(op: Op, size: Size) -> Op:
    """One width, of all operands and results."""
    width = op.outs[0].shape[1]
    return mapped(op, {width: size.width(width)})


def same(op: Op, size: Size) -> Op:
    return op


def sample(op: Op, size: Size) -> Op:
    vocabulary = fewer(op.spec.vocabulary, size.vocabulary, BLOCK)
    spec = replace(op.spec, vocabulary=vocabulary)
    return replace(op, ins=(wide(op.value(0), vocabulary),), spec=spec)


def embed(op: Op, size: Size) -> Op:
    table, width = op.weight(0), size.width(op.outs[0].shape[1])
    rows = size.height(table.shape[0])
    return replace(op, ins=(shaped(table, rows, width),), outs=(wide(op.outs[0], width),))


def norm(op: Op, size: Size) -> Op:
    """Runs of the weight's length."""
    run, width = op.weight(len(op.ins) - 1).shape[0], op.value(0).shape[1]
    runs = min(width // run, size.heads)
    return mapped(op, {width: runs * size.width(run), run: size.width(run)})


def unit_norm(op: Op, size: Size) -> Op:
    width = op.value(0).shape[1]
    return mapped(op, {width: min(width, size.heads * op.spec.size)})


def linear(op: Op, size: Size) -> Op:
    x, w, bias, residual = op.value(0), op.weight(1), op.ins[2], op.ins[3]
    width = size.width(w.shape[1])
    parts = [size.height(rows) for rows in w.parts]
    heights = parts if len(op.outs) > 1 else [sum(parts)]
    ins = (
        wide(x, width),
        shaped(w, sum(parts), width, parts=parts),
        shaped(bias, sum(parts)) if isinstance(bias, Weight) else None,
        wide(residual, sum(parts)) if isinstance(residual, Value) else None,
    )
    return replace(op, ins=ins, outs=tuple(map(wide, op.outs, heights)))


def gated_linear(op: Op, size: Size) -> Op:
    x, w, bias = op.value(0), op.weight(1), op.ins[2]
    width, height = size.width(w.shape[1]), size.height(w.parts[0])
    ins = (
        wide(x, width),
        shaped(w, 2 * height, width, parts=(height, height)),
        shaped(bias, 2 * height) if isinstance(bias, Weight) else None,
    )
    return replace(op, ins=ins, outs=(wide(op.outs[0], height),))


def grouped_linear(op: Op, size: Size) -> Op:
    x, w, groups = op.value(0), op.weight(1), min(op.spec.groups, size.heads)
    width, height = size.width(w.shape[1]), groups * size.height(w.shape[0] // op.spec.groups)
    ins = (wide(x, groups * width), shaped(w, height, width))
    spec = replace(op.spec, groups=groups)
    return replace(op, ins=ins, outs=(wide(op.outs[0], height),), spec=spec)


def streams(op: Op, size: Size) -> Op:
    """x [R, N·D] and what is D wide; coefficients stay."""
    values = [value for value in (*op.ins, *op.outs) if isinstance(value, Value)]
    broad = max(value.shape[1] for value in values)
    n = op.value(2).shape[1] if op.spec is None else op.spec.streams
    width = size.width(broad // n)
    return mapped(op, {broad: n * width, broad // n: width})


def experts(op: Op, size: Size) -> Op:
    x, ids, weights, gate_up, down, *biases = op.ins
    assert isinstance(x, Value) and isinstance(ids, Value) and isinstance(weights, Value), op
    assert isinstance(gate_up, Weight) and isinstance(down, Weight), op
    width, inner = size.width(x.shape[1]), size.width(op.spec.width)
    count = min(op.spec.experts, size.experts)
    chosen = min(ids.shape[1], count)
    heights = 2 * count * inner, count * width
    ins = (
        wide(x, width),
        wide(ids, chosen),
        wide(weights, chosen),
        shaped(gate_up, heights[0], width),
        shaped(down, heights[1], inner),
        *(
            shaped(b, n) if isinstance(b, Weight) else None
            for b, n in zip(biases, heights, strict=True)
        ),
    )
    spec = replace(op.spec, experts=count, width=inner)
    return replace(op, ins=ins, outs=(wide(op.outs[0], width),), spec=spec)


Rule = Callable[[Op, Size], Op]
