"""The step words as the oracle's ops read them: prepared once a round, used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import LONG, Group, StepLayout

I32 = NDArray[np.int32]


@dataclass(slots=True)
class Span:
    """The rows of one sequence in a round, and where the tokens it may see are stored."""

    seq: int
    rows: slice
    first_position: int
    # slots of positions 0 … length-1 per group: a slice where they lie in a run, else indices
    slots: dict[str, slice | NDArray[np.int64]]
    length: int
    read_plane: int  # of recurrent state; to be taken as zeros if first_position is 0
    written_plane: int

    def slots_at(self, group: str, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where tokens at `positions` of the sequence are stored: the same shape."""
        slots = self.slots[group]
        return positions + slots.start if isinstance(slots, slice) else slots[positions]


@dataclass(slots=True)
class Step:
    """One round's words, by name."""

    layout: StepLayout
    words: I32
    carry_token: I32
    groups: tuple[Group, ...]
    tokens: NDArray[np.intp] = field(init=False)  # np.take wants no wider index: Pyodide's are 32
    positions: I32 = field(init=False)
    spans: list[Span] = field(init=False)
    row_slots: dict[str, slice | I32] = field(init=False)
    _angles: dict[str, NDArray[np.float32]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = self.of("position")
        tokens = self.of("token")
        lanes = self.of("lane")[self.of("seq")]
        self.tokens = np.where(tokens < 0, self.carry_token[lanes], tokens).astype(np.intp)
        self.row_slots = {g.name: _run(self.of(f"{g.name}.row_slot")) for g in self.groups}
        read, written = self.of("read_plane"), self.of("written_plane")
        first, last, length = self.of("first_row"), self.of("last_row"), self.of("length")
        self.spans = [
            Span(
                seq=seq,
                rows=slice(int(first[seq]), int(last[seq]) + 1),
                first_position=int(self.positions[first[seq]]),
                slots={g.name: self._slots(g, seq, int(length[seq])) for g in self.groups},
                length=int(length[seq]),
                read_plane=int(read[seq]),
                written_plane=int(written[seq]),
            )
            for seq in range(int(self.of("valid_seqs")[0]))
        ]

    def of(self, name: str) -> I32:
        offset = self.layout.offset[name]
        return self.words[offset : offset + self.layout.size[name]]

    def floats(self, name: str) -> NDArray[np.float32]:
        return self.of(name).view(np.float32)

    def cos_sin(self, name: str, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rows of a rope table [context, r] or [2·context, r], at each position: [R, r]."""
        if name not in self._angles:
            long = self.of("flags")[self.of("seq")] & LONG != 0
            self._angles[name] = table[self.positions + long * (len(table) // 2)]
        return self._angles[name]

    def _slots(self, group: Group, seq: int, length: int) -> slice | NDArray[np.int64]:
        entries = self.layout.table_entries[group.name]
        pages = self.of(f"{group.name}.table")[seq * entries :][: group.entries(length)]
        if (np.diff(pages) == 1).all():
            first = int(pages[0]) * group.page_slots
            return slice(first, first + length)
        within = np.arange(group.page_slots)
        return (pages[:, None].astype(np.int64) * group.page_slots + within).reshape(-1)[:length]


def _run(slots: I32) -> slice | I32:
    """A slice if the slots follow each other: NumPy then copies instead of scattering."""
    if (np.diff(slots) == 1).all():
        return slice(int(slots[0]), int(slots[0]) + slots.size)
    return slots
