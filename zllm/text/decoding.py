"""How tokens become bytes of text.

Sources: the `decoder` of tokenizer.json; llama.cpp's token_to_piece and detokenize.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from zllm.text.byte_pair import spelled_bytes
from zllm.text.character_pair import SPACE
from zllm.text.errors import TokenizerError
from zllm.text.hf_pre_tokenizer import prepend_scheme

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Start(Enum):
    """What a text loses at its start, because encoding put it there."""

    NOTHING = auto()
    ONE_SPACE = auto()
    SPACES_OF_FIRST_TOKEN = auto()  # Hugging Face's Metaspace decoder


@dataclass(frozen=True, slots=True)
class Decoding:
    """`byte_alphabet`: tokens are spelled in GPT-2's. `byte_tokens`: `<0x41>` is one byte."""

    byte_alphabet: bool = False
    byte_tokens: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    start: Start = Start.NOTHING

    def token_bytes(self, token: str, *, added: bool) -> bytes:
        """Bytes of one token. Added tokens are spelled as they are, not in the byte alphabet."""
        if self.byte_alphabet:
            return token.encode("utf-8", "replace") if added else spelled_bytes(token)
        for old, new in self.replacements:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_tokens else None
        return bytes.fromhex(byte[1]) if byte else token.encode("utf-8", "replace")

    def trim_start(self, data: bytes) -> tuple[bytes, bool]:
        """First bytes of a text without what it loses; and whether the start lies behind us."""
        if self.start is Start.SPACES_OF_FIRST_TOKEN:
            return data.replace(b" ", b""), True
        if self.start is Start.ONE_SPACE:
            return data.removeprefix(b" "), data != b""
        return data, True


SENTENCE_PIECE = Decoding(byte_tokens=True, replacements=((SPACE, " "),))
BYTE_LEVEL = Decoding(byte_alphabet=True)


def from_hf_component(component: Mapping[str, Any] | None, *, byte_level: bool) -> Decoding:
    """The `decoder` of tokenizer.json. TokenizerError naming a part that is not supported.

    Where it is missing, tokens are spelled as the model spells them.
    """
    parts = _flatten(component)
    kinds = [part.get("type") for part in parts]
    if byte_level or "ByteLevel" in kinds:
        _refuse(set(kinds) - {"ByteLevel", "Fuse", None})
        return BYTE_LEVEL
    _refuse(set(kinds) - {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})
    return Decoding(
        byte_tokens="ByteFallback" in kinds,
        replacements=tuple(pair for part in parts for pair in _replacements(part)),
        start=_start(parts),
    )


def _refuse(kinds: set[Any]) -> None:
    if kinds:
        raise TokenizerError(
            f"tokenizer.json: decoder {sorted(map(str, kinds))} is not supported; supported: "
            "ByteFallback, ByteLevel, Fuse, Metaspace, Replace of a string, Sequence, Strip"
        )


def _flatten(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component["decoders"] for part in _flatten(inner)]
    return [component]


def _replacements(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    if part["type"] == "Metaspace":
        return [(part.get("replacement", SPACE), " ")]
    if part["type"] == "Replace":
        if "String" not in part["pattern"]:
            raise TokenizerError("tokenizer.json: decoder Replace of a Regex is not supported")
        return [(part["pattern"]["String"], part["content"])]
    return []


def _start(parts: list[Mapping[str, Any]]) -> Start:
    for part in parts:
        if part["type"] == "Metaspace" and prepend_scheme(part) != "never":
            return Start.SPACES_OF_FIRST_TOKEN
        if part["type"] == "Strip" and (part.get("start") or part.get("stop")):
            if (part.get("content"), part.get("start"), part.get("stop")) != (" ", 1, 0):
                raise TokenizerError(
                    f"tokenizer.json: decoder Strip {dict(part)} is not supported; "
                    "supported: one space at the start"
                )
            return Start.ONE_SPACE
    return Start.NOTHING
