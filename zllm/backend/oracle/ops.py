"""Every recorded op that the oracle runs: a closure over arrays, fed from the step words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zllm.backend.contract import Op
from zllm.backend.oracle import (
    compressed_ops,
    core_ops,
    dsa_ops,
    gqa_ops,
    hyper_ops,
    kda_ops,
    mla_ops,
    moe_ops,
    sample_ops,
)
from zllm.backend.oracle.operands import Run

LOWER: dict[str, Callable[[Op, Any, Any], Run]] = {
    **core_ops.LOWER,
    **gqa_ops.LOWER,
    **moe_ops.LOWER,
    **hyper_ops.LOWER,
    **kda_ops.LOWER,
    **mla_ops.LOWER,
    **dsa_ops.LOWER,
    **compressed_ops.LOWER,
    **sample_ops.LOWER,
}
