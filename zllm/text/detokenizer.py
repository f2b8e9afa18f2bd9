"""Streaming detokenizer: token ids to text that never breaks a character."""

from __future__ import annotations

import codecs

from zllm.text.tokenizer import Tokenizer


class StreamingDetokenizer:
    """Turns one sequence of ids into text as they come.

    The joined outputs equal `Tokenizer.decode` of all ids: an unfinished character is held back
    until it is complete or known to be broken. If the text `continues` another, it keeps the space
    at its start.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, show_special: bool = False, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset() if show_special else tokenizer.special_ids
        self._started = self._continues = continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Text that is complete now; "" for a control token unless `show_special`."""
        if id in self._hidden:
            return ""
        data = self._tokenizer.token_bytes(id)
        if not self._started:
            data, self._started = self._tokenizer.decoding.trim_start(data)
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the sequence: U+FFFD for a held unfinished character, else ""."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._started = self._continues
        return text
