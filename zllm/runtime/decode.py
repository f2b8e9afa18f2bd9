"""Decode rounds: one token of each running sequence, carried if the host has not seen it yet."""

from __future__ import annotations

from collections.abc import Iterable

from zllm.runtime.generation import Sequence
from zllm.runtime.rounds import Piece


def decode_pieces(sequences: Iterable[Sequence], context: int) -> list[Piece]:
    """One row of every sequence that may draw another token within `context`."""
    return [
        Piece(sequence, sequence.fed, 1, draws=True)
        for sequence in sequences
        if sequence.may_decode(context)
    ]
