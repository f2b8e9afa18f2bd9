"""Tokenizer: text to token ids and back.

Text is cut at added tokens, normalized, pre-split, and each piece encoded by the model's encoder.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from zllm.text.added_tokens import AddedTokenMatcher
from zllm.text.errors import TokenizerError
from zllm.text.gguf_tokenizer import parts_from_gguf
from zllm.text.hf_tokenizer import parts_from_hf
from zllm.text.tokenizer_parts import TokenizerParts


class Tokenizer:
    """Text to ids and back. `encode` never adds a BOS; see `encode_prompt`."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.add_bos = parts.add_bos
        self.chat_templates = parts.chat_templates
        self.decoding = parts.decoding
        self.special_ids = frozenset(token.id for token in parts.added if token.control)
        self._tokens = parts.tokens
        self._added = {token.id: token for token in parts.added}
        self._pre_tokenizer = parts.pre_tokenizer
        self._encoder = parts.encoder
        self.normalizer = parts.normalizer
        self._token_bytes: dict[int, bytes] = {}
        self._control_matcher = AddedTokenMatcher(token for token in parts.added if token.control)
        self._raw_matcher = AddedTokenMatcher(
            token for token in parts.added if not token.normalized
        )
        self._normalized_matcher = AddedTokenMatcher(
            (token for token in parts.added if token.normalized), spelled=parts.normalizer
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from GGUF metadata (`tokenizer.ggml.*`, `tokenizer.chat_template`).

        Raises TokenizerError naming the key that is missing, damaged or not supported.
        """
        return cls(_undamaged("tokenizer.ggml metadata", lambda: parts_from_gguf(metadata)))

    @classmethod
    def from_hf(
        cls, tokenizer_json: Mapping[str, Any], tokenizer_config: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """Build from the parsed tokenizer.json and, where there is one, tokenizer_config.json.

        Raises TokenizerError naming the component that is missing, damaged or not supported.
        """
        config = tokenizer_config or {}
        return cls(_undamaged("tokenizer.json", lambda: parts_from_hf(tokenizer_json, config)))

    @property
    def vocabulary(self) -> int:
        """Number of ids, those without a token included."""
        return len(self._tokens)

    @property
    def chat_template(self) -> str | None:
        """The template that serves where no other is asked for."""
        return self.chat_templates.get("default")

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text of every control token, with its id."""
        return {self._added[id].content: id for id in sorted(self.special_ids)}

    def encode(self, text: str | bytes, *, special: bool, at_start: bool = True) -> list[int]:
        """Token ids of `text`; with `special`, the text of a control token becomes that token.

        Added tokens that are not control tokens are found in both cases. Each byte that is not
        valid UTF-8 counts as U+FFFD, as in llama.cpp. `at_start`: nothing stands before `text`;
        some tokenizers put a space before the first word only.
        """
        ids: list[int] = []
        for part, token in self._raw_matcher.split(valid_text(text), special=special):
            if token is not None:
                ids.append(token)
            else:
                self._encode_part(part, ids, special, at_start)
            at_start = False
        return ids

    def _encode_part(self, part: str, ids: list[int], special: bool, at_start: bool) -> None:
        """Append the ids of a part without added tokens that are found in raw text."""
        for plain, token in self._normalized_matcher.split(self.normalizer(part), special=special):
            if token is not None:
                ids.append(token)
            else:
                self._encode_plain(plain, ids, at_start)
            at_start = False

    def split_control_tokens(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield (plain text, None) and (matched text, id) in order; they join to `text`."""
        return self._control_matcher.split(text, special=True)

    def encode_prompt(self, text: str | bytes) -> list[int]:
        """Ids of a raw completion prompt: finds control tokens, puts BOS first if wanted, once."""
        ids = self.encode(text, special=True)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, show_special: bool = False) -> str:
        """Text of `ids`; control tokens are "" unless `show_special`, broken UTF-8 is U+FFFD."""
        hidden = frozenset() if show_special else self.special_ids
        chunks: list[bytes] = []
        started = False
        for id in ids:
            if id not in hidden:
                data = self.token_bytes(id)
                if not started:
                    data, started = self.decoding.trim_start(data)
                chunks.append(data)
        return b"".join(chunks).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """Bytes of one token; b"" for an id without a token.

        Ids beyond the vocabulary are such: the matrices of many models are padded with rows.
        """
        data = self._token_bytes.get(id)
        if data is None:
            added = self._added.get(id)
            known = self._tokens[id] if 0 <= id < len(self._tokens) else None
            text = added.content if added else known or ""
            data = self.decoding.token_bytes(text, added=added is not None)
            self._token_bytes[id] = data
        return data

    def _encode_plain(self, text: str, ids: list[int], at_start: bool) -> None:
        encode_piece = self._encoder.encode_piece
        for piece in self._pre_tokenizer.cut(text, at_start):
            ids.extend(encode_piece(piece))


def _undamaged(what: str, read: Callable[[], TokenizerParts]) -> TokenizerParts:
    """A value of the wrong shape inside a file is the file's fault, wherever it is met."""
    try:
        return read()
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{what} is damaged: {type(error).__name__}: {error}") from error


def valid_text(text: str | bytes) -> str:
    """`text` with each undecodable byte, or each unpaired surrogate, replaced by U+FFFD."""
    if isinstance(text, bytes):
        return text.decode("utf-8", errors=_EACH_BYTE)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_EACH_BYTE = "zllm.replace-each-byte"


def _replace_one_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd", error.start + 1


codecs.register_error(_EACH_BYTE, _replace_one_byte)
