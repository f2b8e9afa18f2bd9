"""A round as the runtime sees it: which rows of which sequences, and the step words that say so."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import BIAS, LONG, PENALTIES, Group, PlanKey, StepLayout
from zllm.kv_cache.planes import NO_PLANE
from zllm.runtime.generation import Sequence

CARRIED = -1  # token word: take the one that the round before drew


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` tokens of a sequence from position `first` on; `draws`: then draw the next one."""

    sequence: Sequence
    first: int
    count: int
    draws: bool
    planes: tuple[int, int] = (NO_PLANE, NO_PLANE)  # of the recurrent state: read, written


def plan_key(pieces: Sequences[Piece], emit: Literal["token", "logits"] = "token") -> PlanKey:
    """The exact key of a round; the backend then rounds it up to a bucket."""
    rows = sum(piece.count for piece in pieces)
    context = max(piece.first + piece.count for piece in pieces)
    drawing = [piece.sequence.generation for piece in pieces if piece.draws]
    if emit == "logits":
        return PlanKey(rows, len(pieces), context, "logits")
    if not drawing:
        return PlanKey(rows, len(pieces), context, "none")
    greedy = all(generation.greedy for generation in drawing)
    top = max(generation.top_logprobs for generation in drawing)
    return PlanKey(rows, len(pieces), context, "token", "greedy" if greedy else "full", top)


class StepWords:
    """A round's step buffer, by the names of its layout."""

    def __init__(self, layout: StepLayout) -> None:
        self.layout = layout
        self.words = np.zeros(layout.words, np.int32)

    def __getitem__(self, name: str) -> NDArray[np.int32]:
        return self.words[self.layout.offset[name] :][: self.layout.size[name]]


def step_words(
    layout: StepLayout, pieces: Sequences[Piece], group: Group, scratch_lane: int
) -> NDArray[np.int32]:
    """The words of `layout` for a round of `pieces`; what is left over is padding."""
    words = StepWords(layout)
    words["valid_rows"][0] = sum(piece.count for piece in pieces)
    words["valid_seqs"][0] = len(pieces)
    words["lane"][:] = scratch_lane
    row = 0
    for seq, piece in enumerate(pieces):
        rows = slice(row, row + piece.count)
        _row_words(words, seq, piece, rows, group)
        _sequence_words(words, seq, piece, rows)
        if piece.draws:
            _sampling_words(words, seq, piece.sequence)
        row = rows.stop
    return words.words


def _row_words(words: StepWords, seq: int, piece: Piece, rows: slice, group: Group) -> None:
    """What each new token is, where it stands, and the slot that its entries go to."""
    sequence, last = piece.sequence, piece.first + piece.count
    assert sequence.table is not None
    positions = np.arange(piece.first, last, dtype=np.int32)
    known = sequence.tokens[piece.first : last]
    words["token"][rows] = CARRIED
    words["token"][rows.start : rows.start + len(known)] = known
    words["seq"][rows] = seq
    words["position"][rows] = positions
    entries = group.entries(last)
    width = words.layout.table_entries[group.name]
    table = words[f"{group.name}.table"][seq * width :][:width]
    table[:entries] = sequence.table.pages[:entries]
    pages, within = np.divmod(positions, group.page_slots)
    words[f"{group.name}.row_slot"][rows] = table[pages] * group.page_slots + within


def _sequence_words(words: StepWords, seq: int, piece: Piece, rows: slice) -> None:
    last = piece.first + piece.count
    words["lane"][seq] = piece.sequence.lane
    words["length"][seq] = last
    words["first_row"][seq] = rows.start
    words["last_row"][seq] = rows.stop - 1
    words["draw"][seq] = last
    words["read_plane"][seq], words["written_plane"][seq] = piece.planes
    words["flags"][seq] = LONG if piece.sequence.long else 0


def _sampling_words(words: StepWords, seq: int, sequence: Sequence) -> None:
    g = sequence.generation
    words["flags"][seq] |= (PENALTIES if g.penalised else 0) | (BIAS if g.biased else 0)
    seeds = np.array(g.seed, np.uint32).view(np.int32)
    words["seed_lo"][seq], words["seed_hi"][seq] = seeds
    words["top_k"][seq] = g.top_k
    for name in ("temperature", "top_p", "min_p", "repetition", "frequency", "presence"):
        words[name].view(np.float32)[seq] = getattr(g, name)
