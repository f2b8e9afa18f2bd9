"""Prefill rounds: New Prefill feeds a prompt in chunks, Append Prefill continues a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from zllm.runtime.generation import Sequence
from zllm.runtime.rounds import Piece


def prefill_pieces(sequences: Iterable[Sequence], rows: int) -> list[Piece]:
    """The next chunks of `sequences`, first come first served, at most `rows` rows together.

    A chunk that reaches its sequence's target draws the next token; chunks before it draw nothing.
    """
    pieces: list[Piece] = []
    for sequence in sequences:
        count = min(sequence.target - sequence.fed, rows)
        if count <= 0:
            break
        last = sequence.fed + count == sequence.target
        pieces.append(Piece(sequence, sequence.fed, count, draws=last))
        rows -= count
    return pieces
