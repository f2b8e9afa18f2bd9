"""Read a tokenizer from GGUF metadata.

Source: the GGUF specification; llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zllm.text import gguf_encoders
from zllm.text.added_tokens import AddedToken
from zllm.text.errors import TokenizerError
from zllm.text.gguf_vocabulary import PREFIX, Kind, Vocabulary, require
from zllm.text.tokenizer_parts import TokenizerParts

_ADDED = (Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)
_READERS = {
    "gpt2": gguf_encoders.byte_level,
    "llama": gguf_encoders.sentence_piece,
    "gemma4": gguf_encoders.character_merges,
    "t5": gguf_encoders.unigram,
}


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Raises TokenizerError naming the key that is missing, damaged or not supported."""
    model = require(metadata, "model", str)
    if model not in _READERS:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}; supported: {', '.join(sorted(_READERS))}"
        )
    vocabulary = Vocabulary.of(metadata)
    model_parts = _READERS[model](metadata, vocabulary)
    size = len(vocabulary.tokens)
    bos_id = _token_id(metadata, "bos_token_id", size, model_parts.bos_id)
    return TokenizerParts(
        tokens=vocabulary.tokens,
        added=tuple(
            AddedToken(id, vocabulary.tokens[id], control=kind != Kind.USER_DEFINED)
            for id, kind in enumerate(vocabulary.kinds)
            if kind in _ADDED
        ),
        encoder=model_parts.encoder,
        decoding=model_parts.decoding,
        pre_tokenizer=model_parts.pre_tokenizer,
        normalizer=model_parts.normalizer,
        bos_id=bos_id,
        eos_ids=frozenset(
            id
            for name, usual in (
                ("eos_token_id", model_parts.eos_id),
                ("eot_token_id", None),
                ("eom_token_id", None),
            )
            if (id := _token_id(metadata, name, size, usual)) is not None
        ),
        add_bos=bool(metadata.get(PREFIX + "add_bos_token", model_parts.add_bos)),
        chat_templates=_chat_templates(metadata),
    )


def _token_id(
    metadata: Mapping[str, Any], name: str, vocabulary: int, usual: int | None
) -> int | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return usual if usual is not None and usual < vocabulary else None
    if not isinstance(value, int) or not 0 <= value < vocabulary:
        raise TokenizerError(f"{PREFIX}{name} is {value!r}; expected an id below {vocabulary}")
    return value


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {"default": metadata.get("tokenizer.chat_template")}
    names = metadata.get("tokenizer.chat_templates")
    for name in names if isinstance(names, Sequence) else ():
        templates[name] = metadata.get(f"tokenizer.chat_template.{name}")
    return {name: source for name, source in templates.items() if isinstance(source, str)}
