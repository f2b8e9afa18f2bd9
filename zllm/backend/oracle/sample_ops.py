"""The sampler as a closure, and what it carries from round to round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm import sampling
from zllm.backend.contract import BIAS, NOT_FINITE, PENALTIES, Op, RecordLayout
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Step
from zllm.sampling import Draw, SampleSpec

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


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


def sample(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: SampleSpec = op.spec
    logits = operands.array(op, 0, plan)
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


LOWER = {"sample": sample}
