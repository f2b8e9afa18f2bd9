"""Read a tokenizer from tokenizer.json and tokenizer_config.json (Hugging Face's format)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zllm.text import decoding, hf_pre_tokenizer, normalizer
from zllm.text.added_tokens import AddedToken
from zllm.text.errors import TokenizerError
from zllm.text.hf_encoders import encoder_of, vocabulary_of
from zllm.text.piece_cache import PieceCache
from zllm.text.template_names import named_templates
from zllm.text.tokenizer_parts import TokenizerParts


def parts_from_hf(
    tokenizer_json: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> TokenizerParts:
    """Raises TokenizerError naming the component that is missing, damaged or not supported."""
    model = tokenizer_json.get("model")
    if not isinstance(model, Mapping):
        raise TokenizerError("tokenizer.json: `model` is missing")
    vocabulary = vocabulary_of(model)
    pre_tokenizer, byte_level = hf_pre_tokenizer.from_hf_component(
        tokenizer_json.get("pre_tokenizer")
    )
    added = tuple(_added_token(entry) for entry in tokenizer_json.get("added_tokens") or ())
    ids = {**vocabulary, **{token.content: token.id for token in added}}
    encoder = encoder_of(
        model,
        vocabulary,
        byte_level=byte_level,
        unreachable=frozenset(token.content for token in added if token.control),
    )
    eos_id = _named_token(tokenizer_config, "eos_token", ids)
    bos_id = _named_token(tokenizer_config, "bos_token", ids)
    starts_with = _prefix_token(tokenizer_json.get("post_processor"), ids)
    add_bos = tokenizer_config.get("add_bos_token")
    return TokenizerParts(
        tokens=_tokens_by_id(ids),
        added=added,
        encoder=PieceCache(encoder),
        decoding=decoding.from_hf_component(tokenizer_json.get("decoder"), byte_level=byte_level),
        pre_tokenizer=pre_tokenizer,
        normalizer=normalizer.from_hf_component(tokenizer_json.get("normalizer")),
        bos_id=starts_with if bos_id is None else bos_id,
        eos_ids=frozenset() if eos_id is None else frozenset((eos_id,)),
        add_bos=starts_with is not None if add_bos is None else bool(add_bos),
        chat_templates=named_templates(tokenizer_config.get("chat_template")),
    )


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        id=entry["id"],
        content=entry["content"],
        control=bool(entry.get("special")),
        normalized=bool(entry.get("normalized")),
        left_strip=bool(entry.get("lstrip")),
        right_strip=bool(entry.get("rstrip")),
        single_word=bool(entry.get("single_word")),
    )


def _tokens_by_id(ids: Mapping[str, int]) -> Sequence[str | None]:
    # Ids come from the file: one huge id must not allocate a huge table.
    limit = 4 * len(ids) + 65536
    if not ids or min(ids.values()) < 0 or max(ids.values()) >= limit:
        raise TokenizerError(f"tokenizer.json: token ids must lie in 0 to {limit - 1}")
    tokens: list[str | None] = [None] * (max(ids.values()) + 1)
    for token, id in ids.items():
        tokens[id] = token
    return tokens


def _prefix_token(component: Mapping[str, Any] | None, ids: Mapping[str, int]) -> int | None:
    """The token that the post-processor puts before a single text, or None."""
    if component is None or component.get("type") == "ByteLevel":
        return None
    if component.get("type") == "Sequence":
        found = [_prefix_token(part, ids) for part in component.get("processors", ())]
        return next((id for id in found if id is not None), None)
    if component.get("type") != "TemplateProcessing":
        raise TokenizerError(
            f"tokenizer.json: post_processor {component.get('type')!r} is not supported; "
            "supported: ByteLevel, TemplateProcessing"
        )
    single = [part.get("SpecialToken", {}).get("id") for part in component.get("single", ())]
    if single == [None]:
        return None
    if len(single) != 2 or single[1] is not None or single[0] not in ids:
        raise TokenizerError(
            "tokenizer.json: post_processor TemplateProcessing may only put one known token "
            f"before the text; got {component.get('single')!r}"
        )
    return ids[single[0]]


def _named_token(config: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int | None:
    value = config.get(name)
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None:
        return None
    if text not in ids:
        raise TokenizerError(f"tokenizer_config.json: {name} {text!r} is not in the vocabulary")
    return ids[text]
