"""Read the `pre_tokenizer` of tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zllm.text.errors import TokenizerError
from zllm.text.pattern import compile_pattern
from zllm.text.pre_split_rules import DIGIT, GPT2
from zllm.text.pre_tokenizer import Behavior, Prefix, PreTokenizer, Replace, Split, Stage


def from_hf_component(component: Mapping[str, Any] | None) -> tuple[PreTokenizer, bool]:
    """The pre-split, and whether its pieces are spelled in GPT-2's byte alphabet.

    TokenizerError naming a part that is not supported.
    """
    parts = _flatten(component)
    kinds = [str(part.get("type")) for part in parts]
    if "ByteLevel" in kinds[:-1]:
        raise TokenizerError(f"pre_tokenizer: ByteLevel must come last; got {', '.join(kinds)}")
    stages = tuple(stage for part in parts for stage in _stages(part))
    return PreTokenizer(stages), "ByteLevel" in kinds


def prepend_scheme(part: Mapping[str, Any]) -> str:
    """A Metaspace part's `prepend_scheme`; older files say `add_prefix_space`."""
    scheme = part.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if part.get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise TokenizerError(f"Metaspace: prepend_scheme {scheme!r}; expected always, first, never")
    return str(scheme)


def _flatten(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component["pretokenizers"] for part in _flatten(inner)]
    return [component]


def _stages(part: Mapping[str, Any]) -> list[Stage]:
    kind = part.get("type")
    if kind == "ByteLevel":
        return _byte_level(part)
    if kind == "Digits":
        return [Split(compile_pattern(DIGIT if part.get("individual_digits") else DIGIT + "+"))]
    if kind == "Metaspace":
        return _metaspace(part)
    if kind == "Split":
        return [_split(part)]
    if kind == "WhitespaceSplit":
        return [Split(compile_pattern(r"\s"), Behavior.REMOVED)]
    raise TokenizerError(
        f"pre_tokenizer {kind!r} is not supported; supported: ByteLevel, Digits, Metaspace, "
        "Sequence, Split, WhitespaceSplit"
    )


def _byte_level(part: Mapping[str, Any]) -> list[Stage]:
    prefix: list[Stage] = [Prefix(" ")] if part.get("add_prefix_space") else []
    split: list[Stage] = [Split(compile_pattern(GPT2))] if part.get("use_regex", True) else []
    return prefix + split


def _metaspace(part: Mapping[str, Any]) -> list[Stage]:
    space, scheme = part["replacement"], prepend_scheme(part)
    stages: list[Stage] = [
        Replace(" ", space) if scheme == "never" else Prefix(space, only_first=scheme == "first")
    ]
    if part.get("split", True):
        stages.append(Split(re.compile(re.escape(space)), Behavior.MERGED_WITH_NEXT))
    return stages


def _split(part: Mapping[str, Any]) -> Split:
    pattern = part.get("pattern", {})
    if "Regex" in pattern:
        compiled = compile_pattern(pattern["Regex"])
    elif "String" in pattern:
        compiled = re.compile(re.escape(pattern["String"]))
    else:
        raise TokenizerError(
            f"pre_tokenizer Split: pattern {pattern!r} is neither Regex nor String"
        )
    names = {behavior.value: behavior for behavior in Behavior}
    if part.get("behavior") not in names:
        raise TokenizerError(
            f"pre_tokenizer Split: behavior {part.get('behavior')!r}; expected {', '.join(names)}"
        )
    return Split(compiled, names[part["behavior"]], bool(part.get("invert")))
