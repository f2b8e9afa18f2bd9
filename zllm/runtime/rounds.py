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


def step_words(
    layout: StepLayout, pieces: Sequences[Piece], group: Group, scratch_lane: int
) -> NDArray[np.int32]:
    """The words of `layout` for a round of `pieces`; what is left over is padding."""
    words = np.zeros(layout.words, np.int32)

    def of(name: str) -> NDArray[np.int32]:
        return words[layout.offset[name] :][: layout.size[name]]

    of("valid_rows")[0] = sum(piece.count for piece in pieces)
    of("valid_seqs")[0] = len(pieces)
    of("lane")[:] = scratch_lane
    table = of(f"{group.name}.table").reshape(-1, layout.table_entries[group.name])
    row = 0
    for seq, piece in enumerate(pieces):
        sequence = piece.sequence
        rows = slice(row, row + piece.count)
        pages = sequence.table.pages if sequence.table is not None else []
        last = piece.first + piece.count
        positions = np.arange(piece.first, last, dtype=np.int32)
        known = sequence.tokens[piece.first : last]
        of("token")[rows] = CARRIED
        of("token")[row : row + len(known)] = known
        of("seq")[rows] = seq
        of("position")[rows] = positions
        entries = group.entries(last)
        table[seq, :entries] = pages[:entries]
        of(f"{group.name}.row_slot")[rows] = (
            table[seq, positions // group.page_slots] * group.page_slots
            + positions % group.page_slots
        )
        of("lane")[seq] = sequence.lane
        of("length")[seq] = last
        of("first_row")[seq] = row
        of("last_row")[seq] = rows.stop - 1
        of("draw")[seq] = last
        of("read_plane")[seq], of("written_plane")[seq] = piece.planes
        of("flags")[seq] = LONG if sequence.long else 0
        if piece.draws:
            _sampling_words(of, seq, sequence)
        row = rows.stop
    return words


def _sampling_words(of: object, seq: int, sequence: Sequence) -> None:
    assert callable(of)
    g = sequence.generation
    of("flags")[seq] |= (PENALTIES if g.penalised else 0) | (BIAS if g.biased else 0)
    seeds = np.array(g.seed, np.uint32).view(np.int32)
    of("seed_lo")[seq], of("seed_hi")[seq] = seeds
    of("top_k")[seq] = g.top_k
    for name in ("temperature", "top_p", "min_p", "repetition", "frequency", "presence"):
        of(name).view(np.float32)[seq] = getattr(g, name)
