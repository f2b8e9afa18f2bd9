"""Every kernel that a model uses, on a small case against the reference: what a device is shown by.

Unlike `trust`, which decides what runs, this awaits each answer, so that it also works in a page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from zllm.backend.contract import Op, PlanKey, Recording, Weight
from zllm.backend.webgpu.device import DeviceInfo
from zllm.backend.webgpu.launch import fuse
from zllm.backend.webgpu.trust import bank_counts, coarse, plain, stored_formats

if TYPE_CHECKING:
    from zllm.backend.selftest.compare import Outcome
    from zllm.backend.webgpu.lowering import Bank


class _Formats:
    """The banks of weights, as `stored_formats` asks for them."""

    def __init__(self, banks: Callable[[Weight], Sequence[Bank]]) -> None:
        self.banks = banks


async def self_check(
    recordings: Sequence[Recording],
    info: DeviceInfo,
    banks: Callable[[Weight], Sequence[Bank]],
    scratch: Callable[[int], Any],
    oracle: Any,
    *,
    half: bool,
) -> AsyncIterator[tuple[str, Outcome]]:
    """(op and formats, outcome) of each distinct op of the recordings as the device runs them.

    scratch: a backend of the device with so many lanes. oracle: one with LANES lanes.
    """
    from zllm.backend.selftest.case import LANES
    from zllm.backend.selftest.cases import RECIPES, case_of
    from zllm.backend.selftest.run import checked

    formats_of: Any = _Formats(banks)
    seen: set[Any] = set()
    for recording in recordings:
        for op in fuse(recording.ops, info):
            single, norm = plain(op)
            if single.name not in RECIPES:
                continue
            formats, banks_of = stored_formats(op, formats_of), bank_counts(op, formats_of)
            kind = *_kind(op, recording.key, formats.values()), tuple(banks_of.values())
            if kind in seen:
                continue
            seen.add(kind)
            backend = scratch(LANES)
            try:
                case = case_of(single, recording.key, formats, norm=norm, banks=banks_of)
                less = coarse(info, chain(*formats.values()), recording.key.rows, half=half)
                outcome = await checked(case, backend, oracle, coarse=less)
            finally:
                backend.release()
            yield _title(op, recording.key, formats.values()), outcome


def _kind(op: Op, key: PlanKey, formats: Collection[tuple[str, ...]]) -> Any:
    return op.name, repr(op.spec), key.rows == key.seqs, tuple(formats)


def _title(op: Op, key: PlanKey, formats: Collection[tuple[str, ...]]) -> str:
    held = sorted({name for names in formats for name in names})
    rows = "decode" if key.rows == key.seqs else "prefill"
    return " ".join([op.name, *held, f"({rows})"])
