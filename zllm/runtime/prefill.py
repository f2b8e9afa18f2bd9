"""Prefill rounds: New Prefill feeds a prompt in chunks, Append Prefill continues a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from zllm.runtime.generation import Sequence
from zllm.runtime.rounds import Piece


def prefill_pieces(sequences: Iterable[Sequence], rows: int, *, last_alone: bool) -> list[Piece]:
    """The next chunks of `sequences`, first come first served, at most `rows` rows together.

    A chunk that reaches its sequence's target draws the next token; chunks before it draw nothing.
    last_alone: the last token is a chunk of its own, so that a recurrent state is at hand right
    before it: the same prompt again, or another choice of it, begins there.
    """
    pieces: list[Piece] = []
    for sequence in sequences:
        left = sequence.target - sequence.fed
        count = min(left - 1 if last_alone and left > 1 else left, rows)
        if count <= 0:
            break
        last = count == left
        pieces.append(Piece(sequence, sequence.fed, count, draws=last))
        rows -= count
    return pieces
