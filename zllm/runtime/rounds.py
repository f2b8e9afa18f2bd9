"""A round as the runtime sees it: which rows of which sequences, and the step words that say so."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import LONG, Group, PlanKey, StepLayout
from zllm.kv_cache.planes import NO_PLANE
from zllm.runtime.generation import NO_SAMPLING, Sequence

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
    rows, context, drawing, greedy, top = 0, 0, False, True, -1
    for piece in pieces:
        rows += piece.count
        context = max(context, piece.first + piece.count)
        if piece.draws:
            drawing = True
            greedy = greedy and piece.sequence.greedy
            top = max(top, piece.sequence.generation.top_logprobs)
    if emit == "logits":
        return PlanKey(rows, len(pieces), context, "logits")
    if not drawing:
        return PlanKey(rows, len(pieces), context, "none")
    return PlanKey(rows, len(pieces), context, "token", "greedy" if greedy else "full", top)


def step_words(
    layout: StepLayout, pieces: Sequences[Piece], group: Group, scratch_lane: int
) -> NDArray[np.int32]:
    """The words of `layout` for a round of `pieces`; what is left over is padding. Those of the
    call before are overwritten.
    """
    step, words = layout.blank()
    at, seqs = layout.offset, layout.size["lane"]
    lane, of_sequences = at["lane"], layout.sequences
    row = 0
    for seq, piece in enumerate(pieces):
        own = slice(of_sequences.start + seq, of_sequences.stop, seqs)
        words[own] = array("i", _sequence_words(piece, row))
        _table_words(words, layout, group, piece, seq)
        _row_words(words, layout, group, piece, seq, row)
        row += piece.count
    words[at["valid_rows"]] = row
    words[at["valid_seqs"]] = len(pieces)
    for seq in range(len(pieces), seqs):
        words[lane + seq] = scratch_lane
    return step


def _sequence_words(piece: Piece, first_row: int) -> tuple[int, ...]:
    """Of SEQ, SEQ_STATE and SEQ_SAMPLING, in this order."""
    sequence, length = piece.sequence, piece.first + piece.count
    sampling = sequence.sampling if piece.draws else NO_SAMPLING
    flags = (LONG if sequence.long else 0) | sampling.flags
    rows = first_row, first_row + piece.count - 1
    place = sequence.lane, length, *rows, flags, *sampling.seed, length
    return *place, *piece.planes, *sampling.settings


def _table_words(
    words: memoryview, layout: StepLayout, group: Group, piece: Piece, seq: int
) -> None:
    assert piece.sequence.table is not None
    entries = group.entries(piece.first + piece.count)
    table = layout.offset[f"{group.name}.table"] + seq * layout.table_entries[group.name]
    words[table : table + entries] = array("i", piece.sequence.table.pages[:entries])


def _row_words(
    words: memoryview, layout: StepLayout, group: Group, piece: Piece, seq: int, first_row: int
) -> None:
    """What each new token is, where it stands, and the slot that its entries go to."""
    tokens, table, at = piece.sequence.tokens, piece.sequence.table, layout.offset
    assert table is not None
    token, slot = at["token"], at[f"{group.name}.row_slot"]
    for row in range(first_row, first_row + piece.count):
        position = piece.first + row - first_row
        words[token + row] = tokens[position] if position < len(tokens) else CARRIED
        words[at["seq"] + row] = seq
        words[at["position"] + row] = position
        words[slot + row] = table.slot(position)
