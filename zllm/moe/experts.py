"""The chosen experts' gated feed-forward layers, weighted and summed.

Axes: R tokens, D width, F width of one expert, E experts, k experts chosen per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.activation import GatedSpec, gated

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

# x [n, D], first row of a matrix, count of rows -> x·w[first : first + count]ᵀ: [n, count].
# Only the rows of experts that some token chose are ever asked for.
RowsProduct = Callable[[F32, int, int], F32]


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    experts: int  # E
    width: int  # F of one expert
    gated: GatedSpec
    interleaved: bool = False  # gate and up rows alternate, else gate rows come first


def experts(
    x: F32,
    routed: tuple[I32, F32],
    gate_up: RowsProduct,
    down: RowsProduct,
    spec: ExpertsSpec,
    /,
    *,
    biases: tuple[F32, F32] | None = None,
    out: F32 | None = None,
) -> F32:
    """Σ weight · (down_e·gated(gate_e·x, up_e·x)) over a token's experts: [R, D] -> [R, D].

    `routed`: ids and weights [R, k], the ids of a row distinct. gate_up [E·2F, D] and
    down [E·D, F] hold one expert after the other. `biases` [E·2F], [E·D] lie inside the sum.
    """
    ids, weights = routed
    width, doubled = x.shape[1], 2 * spec.width
    if out is None:
        out = np.empty_like(x)
    out[:] = 0
    for expert in np.unique(ids).tolist():
        rows, choice = np.nonzero(ids == expert)
        both = gate_up(x[rows], expert * doubled, doubled)  # [n, 2F]
        if biases is not None:
            both += biases[0][expert * doubled : (expert + 1) * doubled]
        y = down(gated(*_gate_and_up(both, spec), spec.gated), expert * width, width)  # [n, D]
        if biases is not None:
            y += biases[1][expert * width : (expert + 1) * width]
        out[rows] += weights[rows, choice, None] * y
    return out


def rows_product(w: F32) -> RowsProduct:
    """The products of a matrix [N, D] that is all there."""
    return lambda x, first, count: x @ w[first : first + count].T


def _gate_and_up(both: F32, spec: ExpertsSpec) -> tuple[F32, F32]:
    if spec.interleaved:
        return both[:, 0::2], both[:, 1::2]
    return both[:, : spec.width], both[:, spec.width :]
