"""Remember the ids of pieces, since most pieces of a text are words seen before."""

from __future__ import annotations

from typing import Protocol

# Longer pieces are rarely seen twice.
_SHORT_PIECE = 40
_PIECES = 1 << 16


class PieceEncoder(Protocol):
    """Encodes one pre-split piece."""

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of `piece`. The caller must not change the list."""
        ...


class PieceCache:
    """An encoder that remembers what another one answered."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self._encode = encoder.encode_piece
        self._ids: dict[str, list[int]] = {}

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of `piece`. The caller must not change the list."""
        ids = self._ids.get(piece)
        if ids is not None:
            return ids
        ids = self._encode(piece)
        if len(piece) <= _SHORT_PIECE:
            if len(self._ids) >= _PIECES:
                self._ids.clear()
            self._ids[piece] = ids
        return ids
