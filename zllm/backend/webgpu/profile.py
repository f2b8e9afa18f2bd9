"""Where a round's time goes without timestamp queries, which a page must not ask for.

The dispatches of each kind of op run by themselves, many in one submit, and are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from zllm.backend.contract import StepLayout
from zllm.backend.webgpu.device import Buffer, Device, Dispatch

LEAST_S = 0.02  # that a kind of op is repeated for
MOST_TIMES = 64


async def profile(
    device: Device,
    dispatches: Sequence[Dispatch],
    step: Buffer,
    layout: StepLayout,
    position: int,
    scratch_lane: int,
) -> list[tuple[str, float]]:
    """(op, seconds) of one decode round at a position, the longest first.

    Caches are touched in their scratch slot and lane alone, so that running sequences see nothing.
    """
    words = np.zeros(layout.words, np.int32)
    values = {"valid_rows": 1, "valid_seqs": 1, "position": position, "length": position + 1}
    for name, value in {**values, "lane": scratch_lane, "draw": position + 1}.items():
        words[layout.offset[name]] = value
    data = words.data.cast("B")

    def name_of(dispatch: Dispatch) -> str:
        return dispatch.op.name if dispatch.op is not None else dispatch.kernel.name

    found = []
    for name, own in groupby(sorted(dispatches, key=name_of), key=name_of):
        program = device.program(list(own), step=step)
        await program.submit(data)
        times, began = 0, time.perf_counter()
        while times < MOST_TIMES and time.perf_counter() - began < LEAST_S:
            await program.submit(data)
            times += 1
        found.append((name, (time.perf_counter() - began) / times))
    return sorted(found, key=lambda pair: -pair[1])
