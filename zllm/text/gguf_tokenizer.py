"""Read a tokenizer from GGUF metadata.

Source: the GGUF specification; llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zllm.text.added_tokens import AddedToken
from zllm.text.byte_pair import BytePair
from zllm.text.errors import TokenizerError
from zllm.text.pre_tokenizer import GGUF_STAGES, LLAMA3, from_gguf_name
from zllm.text.tokenizer_parts import TokenizerParts

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_PREFIX = "tokenizer.ggml."


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Raises TokenizerError naming the key that is missing, damaged or not supported."""
    model = _require(metadata, "model", str)
    if model != "gpt2":
        raise TokenizerError(f"tokenizer.ggml.model is {model!r}; supported: gpt2 (byte-level BPE)")
    tokens = _require(metadata, "tokens", Sequence)
    types = metadata.get(_PREFIX + "token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    # llama.cpp reads a missing `pre` as its default split, which no supported model was trained on.
    pre = _require(metadata, "pre", str)
    pre_tokenizer = from_gguf_name(pre)
    llama3 = GGUF_STAGES[pre] == (LLAMA3,)
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    return TokenizerParts(
        tokens=tokens,
        added=tuple(
            AddedToken(id, tokens[id], control=kind != _USER_DEFINED)
            for id, kind in enumerate(types)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ),
        pre_tokenizer=pre_tokenizer,
        encoder=BytePair(
            vocabulary, _require(metadata, "merges", Sequence), whole_pieces_first=llama3
        ),
        bos_id=_token_id(metadata, "bos_token_id", len(tokens)),
        eos_ids=frozenset(
            id
            for name in ("eos_token_id", "eot_token_id", "eom_token_id")
            if (id := _token_id(metadata, name, len(tokens))) is not None
        ),
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", llama3)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _require(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    value = metadata.get(_PREFIX + name)
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise TokenizerError(f"{_PREFIX}{name} is {found}; expected a {kind.__name__}")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, vocabulary: int) -> int | None:
    value = metadata.get(_PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < vocabulary:
        raise TokenizerError(f"{_PREFIX}{name} is {value!r}; expected an id below {vocabulary}")
    return value
