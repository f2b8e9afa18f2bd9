"""The token table of GGUF metadata.

Source: the GGUF specification, tokenizer.ggml.*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from zllm.text.errors import TokenizerError

PREFIX = "tokenizer.ggml."


class Kind(IntEnum):
    """tokenizer.ggml.token_type"""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens and their kinds, by id."""

    tokens: Sequence[str]
    kinds: Sequence[int]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """TokenizerError for a table that is missing or of the wrong length."""
        tokens = require(metadata, "tokens", Sequence)
        kinds = metadata.get(PREFIX + "token_type") or [Kind.NORMAL] * len(tokens)
        if len(kinds) != len(tokens):
            raise TokenizerError(
                f"{PREFIX}token_type has {len(kinds)} entries for {len(tokens)} tokens"
            )
        return cls(tokens, kinds)

    @property
    def ids(self) -> dict[str, int]:
        """Id of each token."""
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    def of_kind(self, *kinds: Kind) -> frozenset[str]:
        """Texts of the tokens of these kinds."""
        return frozenset(
            token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds
        )

    def scores(self, metadata: Mapping[str, Any]) -> Sequence[float]:
        """tokenizer.ggml.scores; TokenizerError if missing or of the wrong length."""
        scores: Sequence[float] = require(metadata, "scores", Sequence)
        if len(scores) != len(self.tokens):
            raise TokenizerError(
                f"{PREFIX}scores has {len(scores)} entries for {len(self.tokens)} tokens"
            )
        return scores


def require(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    """The value of tokenizer.ggml.`name`. TokenizerError if it is missing or of another kind."""
    value = metadata.get(PREFIX + name)
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise TokenizerError(f"{PREFIX}{name} is {found}; expected a {kind.__name__}")
    return value
