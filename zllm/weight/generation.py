"""What a checkpoint says about generation: stop ids and the sampling its authors suggest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ID_KEYS = ("eos_token_id", "bos_token_id")


@dataclass(frozen=True, slots=True)
class Generation:
    """None: the checkpoint does not say."""

    eos: tuple[int, ...] = ()
    bos: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def from_hf(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> Generation:
    """From config.json and generation_config.json; the latter wins. ValueError names a field.

    Beside a vision tower the ids may stand in `text_config` alone.
    """
    text = config.get("text_config")
    ids = {key: text.get(key) for key in _ID_KEYS} if isinstance(text, Mapping) else {}
    both = {key: v for says in (ids, config, generation or {}) for key, v in _given(says)}
    return Generation(
        eos=_ids(both, "eos_token_id"),
        bos=next(iter(_ids(both, "bos_token_id")), None),
        temperature=_number(both, "temperature"),
        top_p=_number(both, "top_p"),
        top_k=_count(both, "top_k"),
        min_p=_number(both, "min_p"),
        repetition_penalty=_number(both, "repetition_penalty"),
    )


def _given(says: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in says.items() if value is not None]


def from_gguf(metadata: Mapping[str, Any]) -> Generation:
    """From GGUF metadata (llama.cpp, llama-arch.cpp: keys). ValueError names a bad field."""
    stops = [
        id
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
        for id in _ids(metadata, f"tokenizer.ggml.{key}")
    ]
    return Generation(
        eos=tuple(dict.fromkeys(stops)),
        bos=next(iter(_ids(metadata, "tokenizer.ggml.bos_token_id")), None),
        temperature=_number(metadata, "general.sampling.temp"),
        top_p=_number(metadata, "general.sampling.top_p"),
        top_k=_count(metadata, "general.sampling.top_k"),
        min_p=_number(metadata, "general.sampling.min_p"),
        repetition_penalty=_number(metadata, "general.sampling.penalty_repeat"),
    )


def _ids(found: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """One token id, a list of them, or none."""
    value = found.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for id in ids:
        if type(id) is not int or id < 0:
            raise ValueError(f"{key}: got {id!r}, expected a token id")
    return tuple(ids)


def _number(found: Mapping[str, Any], key: str) -> float | None:
    value = found.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{key}: got {value!r}, expected a number of 0 or more")
    return float(value)


def _count(found: Mapping[str, Any], key: str) -> int | None:
    value = _number(found, key)
    if value is not None and value != int(value):
        raise ValueError(f"{key}: got {value!r}, expected an integer")
    return None if value is None else int(value)
