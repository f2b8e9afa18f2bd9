"""Teacher-forced logits: given tokens are fed in rounds of given lengths."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

import numpy as np
from numpy.typing import NDArray

from zllm.errors import RequestError
from zllm.kv_cache.paged import PageTable
from zllm.runtime.generation import Generation, Sequence
from zllm.runtime.loop import Loop
from zllm.runtime.rounds import Piece, plan_key, step_words


async def forced_logits(
    loop: Loop, batch: Sequences[Sequences[int]], split: Sequences[int]
) -> list[NDArray[np.float32]]:
    """Logits [T, V] of every sequence of `batch`, fed together.

    `split` are the lengths of the prefill, appends and decodes; a sequence shorter than their sum
    ends earlier. RequestError if a sequence is longer, empty, or beyond the context.
    """
    for tokens in batch:
        _check(tokens, split, loop.limits.context)
    sequences = [loop.new_sequence(Generation(tuple(tokens), 1)) for tokens in batch]
    rows: list[list[NDArray[np.float32]]] = [[] for _ in batch]
    for sequence in sequences:
        sequence.lane = loop.limits.lanes  # scratch: nothing is carried from round to round
        sequence.table = PageTable(loop.pool)
        sequence.planes = loop.new_planes()
    try:
        for length in split:
            await _feed(loop, sequences, length, rows)
    finally:
        for sequence in sequences:
            if sequence.table is not None:
                sequence.table.close()
            if sequence.planes is not None:
                sequence.planes.close()
    return [np.concatenate(parts) for parts in rows]


async def _feed(
    loop: Loop, sequences: list[Sequence], length: int, rows: list[list[NDArray[np.float32]]]
) -> None:
    """Feed `length` more tokens of each, in rounds of at most the backend's prefill rows."""
    ends = [min(sequence.fed + length, len(sequence.tokens)) for sequence in sequences]
    while True:
        room = loop.backend.prefill_rows
        pieces: list[Piece] = []
        for sequence, end in zip(sequences, ends, strict=True):
            count = min(end - sequence.fed, room)
            if count > 0:
                pieces.append(Piece(sequence, sequence.fed, count, draws=False))
                room -= count
        if not pieces:
            return
        for piece in pieces:
            _reserve(loop, piece)
        pieces = [loop.with_planes(piece) for piece in pieces]
        plan = loop.plans.get(plan_key(pieces, emit="logits"))
        words = step_words(plan.layout, pieces, loop.group, loop.limits.lanes)
        answer = await plan.submit(words)
        assert answer.logits is not None
        row = 0
        for piece in pieces:
            rows[sequences.index(piece.sequence)].append(answer.logits[row : row + piece.count])
            row += piece.count
            piece.sequence.fed += piece.count
            if piece.sequence.planes is not None:
                piece.sequence.planes.commit()


def _reserve(loop: Loop, piece: Piece) -> None:
    table = piece.sequence.table
    assert table is not None
    while table.missing(piece.count) > loop.pool.free:
        if not loop.prefixes.evict():
            raise RequestError("the batch does not fit the cache; use fewer or shorter sequences")
    table.begin(piece.count)
    table.commit(piece.count)


def _check(tokens: Sequences[int], split: Sequences[int], context: int) -> None:
    if not tokens:
        raise RequestError("a sequence of tokens is empty")
    if len(tokens) > sum(split):
        raise RequestError(
            f"the split {','.join(map(str, split))} covers {sum(split)} tokens, "
            f"but a sequence has {len(tokens)}"
        )
    if len(tokens) > context:
        raise RequestError(f"{len(tokens)} tokens do not fit a context of {context}")
