"""How far results are from those expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.backend.selftest.case import Case

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One array of numbers or integers [valid rows or sequences, width]."""

    what: str
    array: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    ops: frozenset[str]
    worst: float  # largest |difference| as a part of the largest |expected|; inf: other integers
    tolerance: float
    message: str  # what differs; empty if nothing does

    @property
    def right(self) -> bool:
        return not self.message


def compare(
    case: Case, got: Sequence[Result], expected: Sequence[Result], tolerance: float
) -> Outcome:
    """The worst of all results; the message is of the first that is too far off."""
    worst, message = 0.0, ""
    for own, truth in zip(got, expected, strict=True):
        difference = _difference(own.array, truth.array)
        worst = max(worst, difference)
        if difference > tolerance and not message:
            message = f"{case.name}, {truth.what}: {_say(own.array, truth.array, difference)}"
    return Outcome(case.name, case.ops, worst, tolerance, message)


def _difference(got: Array, expected: Array) -> float:
    if got.shape != expected.shape:
        return np.inf
    if expected.dtype == np.int32:
        return 0.0 if np.array_equal(got, expected) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return np.inf
    worst = _distance(got, expected)[finite].max(initial=0)
    return float(worst / np.abs(expected[finite]).max()) if worst else 0.0


def _distance(got: Array, expected: Array) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.abs(got.astype(np.float64) - expected), nan=np.inf)


def _say(got: Array, expected: Array, difference: float) -> str:
    if got.shape != expected.shape:
        return f"shape {list(got.shape)}, expected {list(expected.shape)}"
    at = np.unravel_index(np.argmax(_distance(got, expected)), expected.shape)
    size = "" if np.isinf(difference) else f", off by {difference:.1e} of the largest"
    return f"row {at[0]}, column {at[1]} is {got[at]:g}, expected {expected[at]:g}{size}"
