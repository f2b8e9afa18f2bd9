"""Every op on every backend, over awkward shapes, against the oracle; the oracle against itself
token by token.

Memory of results is filled with NaN before each round; tolerances are the case's own (1e-4 of the
largest number; integers are equal), 1e-2 where caches are f16. Measured on lavapipe: at most 2e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cross_backend.backends import BACKENDS, Opened, webgpu
from zllm.backend.contract import Op
from zllm.backend.oracle import ops as oracle_ops
from zllm.backend.oracle.backend import OracleBackend
from zllm.backend.selftest.case import LANES, Case
from zllm.backend.selftest.cases import RECIPES
from zllm.backend.selftest.catalogue import catalogue
from zllm.backend.selftest.compare import Outcome, Result, compare
from zllm.backend.selftest.entry import Entry
from zllm.backend.selftest.run import run
from zllm.backend.webgpu import launch
from zllm.backend.webgpu.device import Dispatch
from zllm.backend.webgpu.trust import HALF

ENTRIES = list(catalogue())
NAMED = {entry.name: entry for entry in ENTRIES}


@pytest.fixture(scope="module")
def opened_for() -> Iterator[Callable[[str, Entry], Opened]]:
    """A backend of each kind for all entries: but a vocabulary is the only one of its backend."""
    found: dict[tuple[str, str], Opened] = {}

    def opened(backend: str, entry: Entry) -> Opened:
        alone = entry.name if entry.op.name == "sample" else ""
        if (backend, alone) not in found:
            found[backend, alone] = BACKENDS[backend].open()
        return found[backend, alone]

    yield opened
    for one in found.values():
        one.backend.close()


def oracle() -> OracleBackend:
    return OracleBackend(lanes=LANES)


@pytest.mark.parametrize("name", NAMED)
def test_op(backend: str, opened_for: Callable[[str, Entry], Opened], name: str) -> None:
    entry = NAMED[name]
    if backend == "oracle":
        outcome = token_by_token(entry.case())
    else:
        outcome = on(opened_for(backend, entry), entry.case())
    assert outcome.right, outcome.message


def on(opened: Opened, case: Case, tolerance: float | None = None) -> Outcome:
    got = run(case, opened.backend, before=opened.poison)
    return compare(case, got, run(case, oracle()), tolerance or case.tolerance)


def token_by_token(case: Case) -> Outcome:
    """Rounds of any lengths against rounds of single tokens, decoded weights against packed."""
    opened = BACKENDS["oracle"].open()
    got = run(case, opened.backend, before=opened.poison)
    if "last_rows" in case.ops:  # a record of each sequence, whatever its rows
        return compare(case, got, run(case, oracle()), case.tolerance)
    sequences = range(len(case.tokens))
    order = [s for counts in case.rounds for s in sequences for _ in range(counts[s])]
    rounds = tuple(tuple(int(s == own) for s in sequences) for own in order)
    single = replace(case, rounds=rounds)
    truth = run(single, OracleBackend(lanes=LANES, packed=True))
    return compare(case, joined(got, case), joined(truth, single), case.tolerance)


def joined(results: list[Result], case: Case) -> list[Result]:
    """The rows of all rounds, one array a result."""
    kinds = len(results) // len(case.rounds)
    return [
        Result(f"all rounds, {i}", np.concatenate([result.array for result in results[i::kinds]]))
        for i in range(kinds)
    ]


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "name", [entry.name for entry in ENTRIES if entry.op.name in ("attend", "rope_append")]
)
def test_f16_caches(name: str) -> None:
    opened = webgpu(kv_dtype="f16")
    outcome = on(opened, NAMED[name].case(), HALF)
    opened.backend.close()
    assert outcome.right, outcome.message


def test_every_op_has_a_recipe_and_entries() -> None:
    assert set(RECIPES) == set(oracle_ops.LOWER) == {entry.op.name for entry in ENTRIES}
    assert len(NAMED) == len(ENTRIES)


# Seeded faults


@pytest.mark.parametrize("name", RECIPES)
def test_a_wrong_op_of_the_oracle_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of its first result is 1 in 500 too large, or of other ids; else it does nothing."""
    entry = next(entry for entry in ENTRIES if entry.op.name == name)
    truth = run(entry.case(), oracle())
    lower = oracle_ops.LOWER[name]

    def wrong(op: Op, plan: Any, backend: Any) -> Any:
        right = lower(op, plan, backend)

        def spoil(step: Any) -> None:
            if op.outs:
                right(step)
                out = plan.array(op.outs[0])
                if out.dtype == np.int32:
                    out[-1] += 1
                else:
                    out[-1] *= np.float32(1.002)

        return spoil if name not in ("sample", "logits") else _spoiled_answer(name, op, plan, right)

    monkeypatch.setitem(oracle_ops.LOWER, name, wrong)
    case = entry.case()
    assert not compare(case, run(case, oracle()), truth, case.tolerance).right


def _spoiled_answer(name: str, op: Op, plan: Any, right: Any) -> Any:
    def spoil(step: Any) -> None:
        right(step)
        if name == "sample":
            plan.records[0, 0] += 1
        else:
            plan.logits = plan.logits + np.float32(1e-3)

    return spoil


WRONG_CONSTANTS: Mapping[str, tuple[str, float]] = {
    "embed f32, many rows": ("OUT_OFFSET", 1),
    "rms_norm 43 by 43, many rows": ("OFFSET", 1e-3),
    "soft_cap, many rows": ("CAP", 0.1),
    "linear 103 by 96, a prefill": ("FACTOR", 1e-3),
    "add 103, many rows": ("Y_OFFSET", 1),
    "last_rows, a prefill": ("INDEX", -1),
}


@pytest.mark.vulkan
@pytest.mark.parametrize("name", WRONG_CONSTANTS)
def test_a_wrong_constant_of_a_kernel_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, (wrong, more) = NAMED[name], WRONG_CONSTANTS[name]
    lower = launch.LOWER[entry.op.name]

    spoiled: list[str] = []

    def spoil(dispatch: Dispatch) -> Dispatch:
        held = dict(dispatch.kernel.constants)
        if wrong not in held:  # it makes ready what another reads
            return dispatch
        spoiled.append(dispatch.kernel.name)
        held[wrong] += more
        return replace(dispatch, kernel=replace(dispatch.kernel, constants=tuple(held.items())))

    monkeypatch.setitem(
        launch.LOWER, entry.op.name, lambda op, context: [*map(spoil, lower(op, context))]
    )
    opened = webgpu()
    outcome = on(opened, entry.case())
    opened.backend.close()
    assert spoiled and not outcome.right
