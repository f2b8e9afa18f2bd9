"""What a model file says about its tokenizer, whatever the file's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from zllm.text.added_tokens import AddedToken
from zllm.text.pre_tokenizer import PreTokenizer


class PieceEncoder(Protocol):
    """Encodes one pre-split piece."""

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of `piece`. The caller must not change the list."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a model file says about its tokenizer, as plain values.

    `tokens[id]` is the token's spelling, or None where the id has no token.
    """

    tokens: Sequence[str | None]
    added: tuple[AddedToken, ...]
    pre_tokenizer: PreTokenizer
    encoder: PieceEncoder
    normalizer: Literal["NFC"] | None = None
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    chat_template: str | None = None
