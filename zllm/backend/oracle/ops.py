"""Each recorded op as a closure over its arrays: the domain references, fed from the step words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zllm import norm, rope, sampling
from zllm.activation import gated
from zllm.attention import gqa
from zllm.backend.capability import BIAS, NOT_FINITE, PENALTIES, Op, RecordLayout
from zllm.backend.oracle.step import Step
from zllm.sampling import Draw, SampleSpec

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Run = Callable[[Step], None]

# Query rows per attention block: scores of a block stay near the cache, and causal blocks skip
# the keys that none of their rows may see.
ATTEND_ROWS = 64

# Rows whose gates pass through the five steps of an activation while they are in the cache.
GATED_ROWS = 32


class Carry:
    """State that rounds hand on per lane; the last lane is scratch."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.token = np.zeros(lanes + 1, np.int32)
        self._counts: I32 | None = None
        self._bias: F32 | None = None

    def counts(self, vocabulary: int) -> I32:
        """[lanes + 1, V]; made when the first request asks for penalties."""
        if self._counts is None:
            self._counts = np.zeros((self.lanes + 1, vocabulary), np.int32)
        return self._counts

    def bias(self, vocabulary: int) -> F32:
        if self._bias is None:
            self._bias = np.zeros((self.lanes + 1, vocabulary), np.float32)
        return self._bias


def _embed(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    table, out = _weight(op.ins[0], backend), plan.array(op.outs[0])
    return lambda step: table.rows(step.tokens, out)


def _rms_norm(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, out = plan.array(_value(op.ins[0])), plan.array(op.outs[0])
    w = _weight(op.ins[1], backend).dense()
    return lambda step: _discard(norm.rms_norm(x, w, op.spec, out=out))


def _linear(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, w = plan.array(_value(op.ins[0])), _weight(op.ins[1], backend)
    out = _joined(op, plan)
    bias = None if op.ins[2] is None else _weight(op.ins[2], backend).dense()
    residual = None if op.ins[3] is None else plan.array(_value(op.ins[3]))

    def run(step: Step) -> None:
        w.product(x, out)
        if bias is not None:
            np.add(out, bias, out=out)
        if residual is not None:
            np.add(out, residual, out=out)

    return run


def _gated_linear(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, w = plan.array(_value(op.ins[0])), _weight(op.ins[1], backend)
    out = plan.array(op.outs[0])
    rows, width = out.shape
    both = plan.scratch(rows * 2 * width).reshape(rows, 2 * width)
    bias = None if op.ins[2] is None else _weight(op.ins[2], backend).dense()

    def run(step: Step) -> None:
        w.product(x, both)
        if bias is not None:
            np.add(both, bias, out=both)
        for first in range(0, rows, GATED_ROWS):
            block = slice(first, first + GATED_ROWS)
            gated(both[block, :width], both[block, width:], op.spec, out=out[block])

    return run


def _gated(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    gate, up = (plan.array(_value(value)) for value in op.ins)
    out = plan.array(op.outs[0])
    return lambda step: _discard(gated(gate, up, op.spec, out=out))


def _rope_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: gqa.GqaSpec = op.spec
    q, k, v = (plan.array(_value(value)) for value in op.ins[:3])
    cache: Any = op.ins[3]
    keys, values = backend.caches[cache.name]
    rope_name: str = getattr(op.ins[4], "name", "")
    table = _weight(op.ins[4], backend).dense()
    out = plan.array(op.outs[0])

    def heads(x: F32) -> F32:
        return x.reshape(x.shape[0], -1, spec.head_size)

    def run(step: Step) -> None:
        cos_sin = step.cos_sin(rope_name, table)  # [R, r]
        rope.rotate(heads(q), cos_sin, interleaved=spec.interleaved, out=heads(out))
        turned = rope.rotate(heads(k), cos_sin, interleaved=spec.interleaved)  # [R, G, K]
        slots = step.row_slots[cache.group]  # a slice where they are a run
        keys[:, slots] = turned.transpose(1, 0, 2)
        values[:, slots] = heads(v).transpose(1, 0, 2)

    return run


def _attend(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: gqa.GqaSpec = op.spec
    cache: Any = op.ins[1]
    keys, values = backend.caches[cache.name]
    q = _heads(plan.array(_value(op.ins[0])), spec)
    out = _heads(plan.array(op.outs[0]), spec)

    def run(step: Step) -> None:
        for span in step.spans:
            slots = span.slots[cache.group]
            k, v = keys[:, slots], values[:, slots]  # [G, S, K]; views where the slots are a run
            for first in range(span.rows.start, span.rows.stop, ATTEND_ROWS):
                rows = slice(first, min(first + ATTEND_ROWS, span.rows.stop))
                seen = span.first_position + rows.stop - span.rows.start
                gqa.attend(q[rows], k[:, :seen], v[:, :seen], _causal(rows), spec, out=out[rows])

    return run


def _causal(rows: slice) -> NDArray[np.bool_] | None:
    """[T, T] for a block's own positions, which end its keys; None if it is one row."""
    count = rows.stop - rows.start
    return None if count == 1 else np.tri(count, dtype=np.bool_)


def _last_rows(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, out = plan.array(_value(op.ins[0])), plan.array(op.outs[0])
    return lambda step: _discard(np.take(x, step.of("last_row"), axis=0, out=out))


def _logits(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    plan.logits = plan.array(_value(op.ins[0]))
    return lambda step: None


def _sample(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: SampleSpec = op.spec
    logits = plan.array(_value(op.ins[0]))
    carry = backend.carry

    def run(step: Step) -> None:
        lanes, flags = step.of("lane"), step.of("flags")
        for seq in range(len(step.spans)):
            row, lane = logits[seq], int(lanes[seq])
            token = (
                _draw(row, step, seq, carry, lane, int(flags[seq]))
                if spec.full
                else int(np.argmax(row))
            )
            carry.token[lane] = token
            _record(plan.records[seq], row, token, spec)

    return run


def _draw(row: F32, step: Step, seq: int, carry: Carry, lane: int, flags: int) -> int:
    draw = Draw(
        temperature=float(step.floats("temperature")[seq]),
        top_k=int(step.of("top_k")[seq]),
        top_p=float(step.floats("top_p")[seq]),
        min_p=float(step.floats("min_p")[seq]),
        repetition=float(step.floats("repetition")[seq]),
        frequency=float(step.floats("frequency")[seq]),
        presence=float(step.floats("presence")[seq]),
        seed=(int(step.of("seed_lo")[seq]), int(step.of("seed_hi")[seq])),
        position=int(step.of("draw")[seq]),
    )
    counts = carry.counts(row.size)[lane] if flags & PENALTIES else None
    if counts is not None:
        row = sampling.penalise(row, counts, draw)
    if flags & BIAS:
        row = row + carry.bias(row.size)[lane]
    token = sampling.sample(row, draw)
    if counts is not None:
        counts[token] = (counts[token] + 2) | 1
    return token


def _record(record: I32, logits: F32, token: int, spec: SampleSpec) -> None:
    record[RecordLayout.TOKEN] = token
    if not np.isfinite(logits).all():
        record[RecordLayout.FLAGS] = NOT_FINITE
        return
    if spec.top_logprobs < 0:
        return
    all_logprobs = sampling.logprobs(logits)
    floats = record.view(np.float32)
    floats[RecordLayout.LOGPROB] = all_logprobs[token]
    count = spec.top_logprobs
    top = np.argsort(-all_logprobs, kind="stable")[:count]
    record[RecordLayout.TOP : RecordLayout.TOP + top.size] = top
    floats[RecordLayout.TOP + count : RecordLayout.TOP + count + top.size] = all_logprobs[top]


LOWER: dict[str, Callable[[Op, Any, Any], Run]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "gated_linear": _gated_linear,
    "gated": _gated,
    "rope_append": _rope_append,
    "attend": _attend,
    "last_rows": _last_rows,
    "logits": _logits,
    "sample": _sample,
}


def _value(operand: Any) -> Any:
    assert operand is not None
    return operand


def _weight(operand: Any, backend: OracleBackend) -> Any:
    return backend.weights[operand.name]


def _joined(op: Op, plan: OraclePlan) -> F32:
    """The outputs of a product as one array [R, N]."""
    first = plan.array(op.outs[0])
    if len(op.outs) == 1:
        return first
    columns = sum(out.shape[1] for out in op.outs)
    return np.lib.stride_tricks.as_strided(
        first, (first.shape[0], columns), (columns * first.itemsize, first.itemsize)
    )


def _heads(x: F32, spec: gqa.GqaSpec) -> F32:
    return x.reshape(x.shape[0], spec.heads, spec.head_size)


def _discard(_: object) -> None:
    """References return what they wrote; a run returns nothing."""
