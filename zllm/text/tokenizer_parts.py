"""What a model file says about its tokenizer, whatever the file's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zllm.text.added_tokens import AddedToken
from zllm.text.decoding import Decoding
from zllm.text.normalizer import UNCHANGED, Normalizer
from zllm.text.piece_cache import PieceEncoder
from zllm.text.pre_tokenizer import UNCUT, PreTokenizer


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a model file says about its tokenizer, as plain values.

    `tokens[id]` is the token's spelling, or None where the id has no token. `chat_templates` has
    sources by name; that of the only or usual one is "default".
    """

    tokens: Sequence[str | None]
    added: tuple[AddedToken, ...]
    encoder: PieceEncoder
    decoding: Decoding
    pre_tokenizer: PreTokenizer = UNCUT
    normalizer: Normalizer = UNCHANGED
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    chat_templates: Mapping[str, str] = field(default_factory=dict)
