"""The backends that the suite runs on, and how close each must come."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Expected:
    logits: float  # largest |difference| from the f64 truth, as a part of max|logit|
    ids_up_to_gap: float  # greedy ids are equal until the two best logits are closer than this
    marks: tuple[Any, ...] = ()


# A new backend is one more line. Tolerances: issue 2, "Must reach".
BACKENDS = {
    "oracle": Expected(logits=1e-4, ids_up_to_gap=0.0),
    "webgpu": Expected(logits=1e-3, ids_up_to_gap=1e-3, marks=(pytest.mark.vulkan,)),
}


def chosen() -> list[Any]:
    """Every backend, or those that ZLLM_TEST_BACKENDS names; an unknown name is an error."""
    names = os.environ.get("ZLLM_TEST_BACKENDS", ",".join(BACKENDS)).split(",")
    return [pytest.param(name, marks=BACKENDS[name].marks) for name in names]
