"""What the ops' closures hold: arrays of values, resident weights, storage of caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Op
from zllm.backend.oracle.resident import Resident
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

F32 = NDArray[np.float32]
Run = Callable[[Step], None]


def array(op: Op, index: int, plan: OraclePlan) -> F32:
    """The array of the op's operand `index`, a value."""
    return plan.array(op.value(index))


def optional_array(op: Op, index: int, plan: OraclePlan) -> F32 | None:
    return None if op.ins[index] is None else array(op, index, plan)


def weight(op: Op, index: int, backend: OracleBackend) -> Resident:
    return backend.weights[op.weight(index).name]


def vector(op: Op, index: int, backend: OracleBackend) -> F32:
    """A weight as one f32 array."""
    return weight(op, index, backend).dense()


def optional_vector(op: Op, index: int, backend: OracleBackend) -> F32 | None:
    return None if op.ins[index] is None else vector(op, index, backend)


def storage(op: Op, index: int, backend: OracleBackend) -> tuple[F32, ...]:
    return backend.caches[op.cache(index).name].arrays


def joined(op: Op, plan: OraclePlan) -> F32:
    """The outputs of a product as one array [R, N]."""
    first = plan.array(op.outs[0])
    columns = sum(out.shape[1] for out in op.outs)
    return np.lib.stride_tricks.as_strided(
        first, (first.shape[0], columns), (columns * first.itemsize, first.itemsize)
    )


def heads(x: F32, count: int) -> F32:
    """[R, heads·K] -> [R, heads, K]."""
    return x.reshape(x.shape[0], count, -1)


def discard(_: Any) -> None:
    """References return what they wrote; a run returns nothing."""
