"""Runs a case on a backend, and holds its results against those of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Backend, RecordLayout, Round, StepLayout
from zllm.backend.drive import drive
from zllm.backend.selftest.case import Case, Recorder
from zllm.backend.selftest.compare import Outcome, Result, compare
from zllm.backend.selftest.step import Steps
from zllm.errors import BackendError

T = TypeVar("T")


def run(case: Case, backend: Backend, *, before: Callable[[], None] | None = None) -> list[Result]:
    """`ran`, where no answer has to be awaited."""
    return drive(ran(case, backend, before=before))


def check(
    case: Case,
    backend: Backend,
    oracle: Backend,
    *,
    coarse: Mapping[str, float] | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """Whether `backend` computes what `oracle` does. coarse: tolerances of its less exact ops."""
    return drive(checked(case, backend, oracle, coarse=coarse, before=before))


async def checked(
    case: Case,
    backend: Backend,
    oracle: Backend,
    *,
    coarse: Mapping[str, float] | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """`check`, where an answer has to be awaited."""
    expected = await ran(case, oracle)
    got = await ran(case, backend, before=before)
    tolerances = [tolerance for op, tolerance in (coarse or {}).items() if op in case.ops]
    return compare(case, got, expected, max(case.tolerance, *tolerances, 0.0))


async def ran(
    case: Case, backend: Backend, *, before: Callable[[], None] | None = None
) -> list[Result]:
    """Loads what the case needs, compiles its recordings, runs its rounds in order.

    The backend has LANES lanes; names of weights and caches begin with the case's. `before` is
    called before each submit: tests fill memory with NaN there. BackendError names an op that the
    backend lacks.
    """
    bound = _Bound(case, backend)
    steps = Steps(case)
    results: list[Result] = []
    for index in range(len(case.rounds)):
        for at in range(len(case.results)):
            recorder, layout = bound.record(index, at)
            plan = backend.compile(recorder.finish(layout))
            if before is not None:
                before()
            answer = await plan.submit(steps.words(layout, index))
            what = f"round {index}, result {at}"
            if case.emit == "token":
                results += _of_records(what, answer, case, index)
            else:
                results.append(_of_rows(what, answer, recorder, sum(case.rounds[index])))
    return results


class _Bound:
    """A case whose weights and caches are loaded."""

    def __init__(self, case: Case, backend: Backend) -> None:
        self.case, self.backend = case, backend
        self.weights = {
            name: backend.load(
                f"{case.name}: {name}",
                stored.parts,
                uses=stored.uses,
                together=stored.together,
                most=stored.most,
            )
            for name, stored in case.weights.items()
        }
        self.caches = {
            name: backend.new_cache(f"{case.name}: {name}", spec, group=case.group(spec))
            for name, spec in case.caches.items()
        }
        sampling = case.sampling
        if sampling.counts is not None or sampling.bias is not None:
            for lane in range(len(case.tokens)):
                backend.write_lane(lane, counts=sampling.counts, bias=sampling.bias)

    def record(self, index: int, at: int) -> tuple[Recorder, StepLayout]:
        """The list of round `index` that gives result `at`."""
        key = self.backend.bucket(self.case.key(index))
        recorder = Recorder(key, self.weights, self.caches)
        out = self.case.results[at](recorder)
        if out is not None:
            recorder.run("logits", (out,))
        for op in recorder.ops:
            reason = self.backend.missing(op)
            if reason is not None:
                raise BackendError(f"{self.backend.name} cannot run {op.name}: {reason}")
        return recorder, StepLayout(key, [self.case.full])


def _of_rows(what: str, answer: Round, recorder: Recorder, rows: int) -> Result:
    """What `logits` brought out; integers come as their bits."""
    out = recorder.ops[-1].value(0)
    assert answer.logits is not None
    array: NDArray[Any] = np.ascontiguousarray(answer.logits)[:rows].copy()
    return Result(what, array.view(np.int32 if out.dtype == "i32" else np.float32))


def _of_records(what: str, answer: Round, case: Case, index: int) -> list[Result]:
    """Tokens, flags and top ids as integers, then the logprobs."""
    records = np.asarray(answer.records)[: sum(count > 0 for count in case.rounds[index])]
    layout = RecordLayout(case.top_logprobs)
    ids = [layout.TOKEN, layout.FLAGS, *range(layout.TOP, layout.TOP + layout.top)]
    found = [Result(f"{what}: tokens", records[:, ids].copy())]
    if case.top_logprobs >= 0:
        floats = [layout.LOGPROB, *range(layout.TOP + layout.top, layout.words)]
        logprobs = np.ascontiguousarray(records[:, floats]).view(np.float32)
        found.append(Result(f"{what}: logprobs", logprobs))
    return found
