"""The step words of a case's rounds: pages and planes are dealt out in no order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import LONG, StepLayout
from zllm.backend.selftest.case import LANES, PAGE_SLOTS, Case

I32 = NDArray[np.int32]
CARRIED = -1


class Steps:
    """Every token of the case has a row of its own in the inputs' tables: its token id."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(len(case.name))
        tokens = case.tokens
        self.first_token = np.cumsum([0, *tokens])
        pages = 1 + rng.permutation(case.full.pages - 1)
        ends = np.cumsum([-(-count // PAGE_SLOTS) for count in tokens])
        self.pages = np.split(pages, ends)
        planes = 1 + rng.permutation(case.state.pages - 1)
        self.planes = planes.reshape(len(case.rounds), len(tokens))

    def words(self, layout: StepLayout, index: int) -> I32:
        """Of round `index`: int32 [layout.words]; what is left over is padding."""
        case, words = self.case, _Words(layout)
        words["lane"][:] = LANES
        present = [s for s, count in enumerate(case.rounds[index]) if count]
        row = 0
        for seq, sequence in enumerate(present):
            rows = slice(row, row + case.rounds[index][sequence])
            first = sum(counts[sequence] for counts in case.rounds[:index])
            self._rows(words, seq, sequence, rows, first)
            self._sequence(words, index, seq, sequence, rows, first)
            row = rows.stop
        for name, value in case.sampling.words.items():
            whole = isinstance(value, int)
            words[name][: len(present)] = value if whole else np.float32(value).view(np.int32)
        words["valid_rows"][0], words["valid_seqs"][0] = row, len(present)
        return words.words

    def _rows(self, words: _Words, seq: int, sequence: int, rows: slice, first: int) -> None:
        positions = np.arange(first, first + rows.stop - rows.start)
        carried = self.case.carried and first > 0
        words["token"][rows] = CARRIED if carried else self.first_token[sequence] + positions
        words["seq"][rows] = seq
        words["position"][rows] = positions
        pages = self.pages[sequence][: -(-(positions[-1] + 1) // PAGE_SLOTS)]
        entries = words.layout.table_entries["full"]
        words["full.table"][seq * entries :][: pages.size] = pages
        words["full.row_slot"][rows] = (
            pages[positions // PAGE_SLOTS] * PAGE_SLOTS + positions % PAGE_SLOTS
        )

    def _sequence(
        self, words: _Words, index: int, seq: int, sequence: int, rows: slice, first: int
    ) -> None:
        case, last = self.case, first + rows.stop - rows.start
        before = [i for i in range(index) if case.rounds[i][sequence]]
        words["read_plane"][seq] = self.planes[before[-1], sequence] if before else 0
        words["written_plane"][seq] = self.planes[index, sequence]
        words["lane"][seq] = sequence
        words["length"][seq] = words["draw"][seq] = last
        words["first_row"][seq], words["last_row"][seq] = rows.start, rows.stop - 1
        words["flags"][seq] = case.sampling.flags | (LONG if case.long and sequence % 2 else 0)


class _Words:
    def __init__(self, layout: StepLayout) -> None:
        self.layout = layout
        self.words = np.zeros(layout.words, np.int32)

    def __getitem__(self, name: str) -> I32:
        return self.words[self.layout.offset[name] :][: self.layout.size[name]]
