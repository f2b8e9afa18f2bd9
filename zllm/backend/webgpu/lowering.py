"""From recorded ops to dispatches: the types that the kernels' launchers see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from zllm.backend.contract import Cache, PlanKey, StepLayout, Value, Weight
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch
from zllm.backend.webgpu.store import Store


@dataclass(frozen=True, slots=True)
class View:
    """A value's place: row r, column c is element offset + r·stride + c of an f32 or i32 buffer."""

    buffer: Buffer
    offset: int  # elements
    stride: int  # elements
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Bank:
    """Rows of a weight in one buffer and one format; large or mixed weights have several banks."""

    buffer: Buffer
    format: str  # "f32", "f16", "bf16", "q4_0", …; as resident, maybe repacked
    first_row: int
    rows: int
    columns: int
    row_words: int  # u32 words from row to row


@dataclass(frozen=True, slots=True)
class ResidentForm:
    """How rows of a stored format lie on the device: as stored, padded to words, or repacked."""

    format: str  # of the banks
    row_words: int  # of the banks
    # (raw, bank): from an upload in the stored format to the bank, same rows and columns.
    repack: Callable[[Bank, Bank], list[Dispatch]] | None = None


class Context(Protocol):
    """What a launcher may ask while a recording is compiled."""

    info: DeviceInfo
    key: PlanKey
    layout: StepLayout
    step: Buffer  # StepLayout words
    result: Buffer  # records, or logits for emit "logits"

    def view(self, value: Value, /) -> View: ...

    def banks(self, weight: Weight, /) -> tuple[Bank, ...]: ...

    def store(self, cache: Cache, /) -> Store: ...

    def carry_token(self) -> Buffer:
        """i32 [lanes]: the last token drawn for each lane."""
        ...

    def carry_counts(self) -> Buffer:
        """i32 [lanes, V]: 2 × times generated + (1 if seen)."""
        ...

    def carry_bias(self) -> Buffer:
        """f32 [lanes, V]: added to the logits of lanes whose flags say so."""
        ...

    def scratch(self, size_bytes: int, /) -> Buffer:
        """Memory of the op being lowered; never one of its inputs or outputs."""
        ...
