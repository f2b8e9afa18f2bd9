"""Unigram language model: the cut of a piece with the highest sum of token scores.

Source: Kudo 2018, section 3.2; SentencePiece's unigram_model (Viterbi), and for ties and unknown
characters Hugging Face tokenizers' Unigram.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

# SentencePiece's kUnkPenalty: an unknown character costs this more than the worst token.
UNKNOWN_PENALTY = 10.0
_NONE = -1


class Unigram:
    """`tokens` maps a text to its id and score, a logarithm of a probability.

    Characters without a token become `byte_ids` of their UTF-8 bytes where those are given (None
    for a byte without a token), else one `unknown_id` for all that follow one another.
    """

    def __init__(
        self,
        tokens: Mapping[str, tuple[int, float]],
        *,
        unknown_id: int | None,
        unknown_score: float,
        byte_ids: Sequence[int | None] | None = None,
    ) -> None:
        self._tokens = tokens
        self._unknown_id = _NONE if unknown_id is None else unknown_id
        self._unknown_score = unknown_score
        self._byte_ids = byte_ids
        lengths: dict[str, set[int]] = {}
        for token in filter(None, tokens):
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one piece. Linear in its length."""
        ids: list[int] = []
        unknown: list[str] = []
        for text, id in self._cut(piece):
            if id == self._unknown_id:
                unknown.append(text)
                continue
            self._end_unknown(unknown, ids)
            ids.append(id)
        self._end_unknown(unknown, ids)
        return ids

    def _cut(self, piece: str) -> list[tuple[str, int]]:
        """The best path as (text, id)."""
        size = len(piece)
        tokens, lengths, none = self._tokens, self._lengths, ()
        unknown_id = self._unknown_id
        score = [0.0] + [-inf] * size
        # Where the best token that ends here begins, and its id.
        begin, chosen = [0] * (size + 1), [unknown_id] * (size + 1)
        for start, character in enumerate(piece):
            here = score[start]
            alone = False
            for length in lengths.get(character, none):
                end = start + length
                if end > size:
                    break
                found = tokens.get(piece[start:end])
                if found is None:
                    continue
                alone = alone or length == 1
                if found[1] + here > score[end]:
                    score[end], begin[end], chosen[end] = found[1] + here, start, found[0]
            if not alone and self._unknown_score + here > score[start + 1]:
                score[start + 1] = self._unknown_score + here
                begin[start + 1], chosen[start + 1] = start, unknown_id
        path: list[tuple[str, int]] = []
        end = size
        while end > 0:
            path.append((piece[begin[end] : end], chosen[end]))
            end = begin[end]
        return path[::-1]

    def _end_unknown(self, unknown: list[str], ids: list[int]) -> None:
        """Append the ids of unknown characters in a row, and forget them."""
        text = "".join(unknown)
        unknown.clear()
        if not text:
            return
        if text in self._tokens:
            ids.append(self._tokens[text][0])
            return
        if self._byte_ids is not None:
            spelled = [self._byte_ids[byte] for byte in text.encode("utf-8")]
            known = [id for id in spelled if id is not None]
            if len(known) == len(spelled):
                ids += known
                return
        if self._unknown_id != _NONE:
            ids.append(self._unknown_id)
