"""Pre-splits: cut text into the pieces that byte-pair merges never cross.

A pre-split is a chain of stages. Each stage cuts every piece of the stage before it, and sees
nothing beyond that piece.
Sources: the `pre_tokenizer` of tokenizer.json; `tokenizer.ggml.pre` as llama.cpp reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zllm.text.errors import TokenizerError
from zllm.text.pattern import compile_pattern

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGIT = r"\p{N}"

# The values of tokenizer.ggml.pre that llama.cpp treats alike.
GGUF_STAGES: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "smollm": (DIGIT, GPT2),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One cut: matches are pieces, and so are the gaps between them unless `drop_gaps`."""

    pattern: re.Pattern[str]
    drop_gaps: bool = False

    def cut(self, text: str) -> list[str]:
        """Cut `text`. The pieces join to `text` unless gaps are dropped."""
        pieces = self.pattern.findall(text)
        if self.drop_gaps or sum(map(len, pieces)) == len(text):
            return pieces
        return self._cut_with_gaps(text)

    def _cut_with_gaps(self, text: str) -> list[str]:
        pieces: list[str] = []
        end = 0
        for match in self.pattern.finditer(text):
            if match.start() > end:
                pieces.append(text[end : match.start()])
            pieces.append(match.group())
            end = match.end()
        pieces.append(text[end:])
        return pieces


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A chain of stages."""

    stages: tuple[Stage, ...]

    def cut(self, text: str) -> Iterable[str]:
        """Cut `text` into pieces; some may be empty."""
        pieces = [text]
        for stage in self.stages:
            if len(pieces) == 1:
                pieces = stage.cut(pieces[0])
            else:
                pieces = [part for piece in pieces for part in stage.cut(piece)]
        return pieces


def from_gguf_name(name: str) -> PreTokenizer:
    """The pre-split that llama.cpp applies for `tokenizer.ggml.pre`."""
    patterns = GGUF_STAGES.get(name)
    if patterns is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}; supported: {', '.join(sorted(GGUF_STAGES))}"
        )
    return PreTokenizer(tuple(Stage(compile_pattern(pattern)) for pattern in patterns))


def from_hf_component(component: Mapping[str, Any] | None) -> PreTokenizer:
    """The pre-split of tokenizer.json's `pre_tokenizer`; it must use the byte-level alphabet."""
    parts = _flatten(component)
    if not any(part.get("type") == "ByteLevel" for part in parts):
        raise TokenizerError(
            "pre_tokenizer has no ByteLevel part; only byte-level BPE is supported"
        )
    stages: list[Stage] = []
    for part in parts:
        stages.extend(_stages(part))
    return PreTokenizer(tuple(stages))


def _flatten(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component["pretokenizers"] for part in _flatten(inner)]
    return [component]


def _stages(part: Mapping[str, Any]) -> list[Stage]:
    kind = part.get("type")
    if kind == "ByteLevel":
        if part.get("add_prefix_space"):
            raise TokenizerError("pre_tokenizer ByteLevel: add_prefix_space is not supported")
        return [Stage(compile_pattern(GPT2))] if part.get("use_regex", True) else []
    if kind == "Digits":
        return [Stage(compile_pattern(DIGIT if part.get("individual_digits") else DIGIT + "+"))]
    if kind == "Split":
        return [_split_stage(part)]
    raise TokenizerError(
        f"pre_tokenizer {kind!r} is not supported; supported: ByteLevel, Digits, Split"
    )


def _split_stage(part: Mapping[str, Any]) -> Stage:
    pattern = part.get("pattern", {})
    if "Regex" in pattern:
        compiled = compile_pattern(pattern["Regex"])
    elif "String" in pattern:
        compiled = re.compile(re.escape(pattern["String"]))
    else:
        raise TokenizerError(
            f"pre_tokenizer Split: pattern {pattern!r} is neither Regex nor String"
        )
    behavior, inverted = part.get("behavior"), bool(part.get("invert"))
    if behavior == "Isolated":
        return Stage(compiled)
    if behavior == "Removed" and inverted:
        return Stage(compiled, drop_gaps=True)
    raise TokenizerError(
        f"pre_tokenizer Split: behavior {behavior!r} with invert={inverted} is not supported; "
        "supported: Isolated, or Removed with invert"
    )
