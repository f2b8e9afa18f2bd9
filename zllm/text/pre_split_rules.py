"""The pre-splits of model families, by the name that GGUF's `tokenizer.ggml.pre` gives them.

Each is a chain of patterns as its models were trained with, from their tokenizer.json or tokenizer
code; llama.cpp rewrites some of them only because its own matcher knows fewer classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from zllm.text.errors import TokenizerError
from zllm.text.pattern import characters, compile_pattern
from zllm.text.pre_tokenizer import PreTokenizer, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MINICPM5 = (r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+"))
DIGIT = r"\p{N}"

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NOT_HAN = r"&&[^\p{Han}]"
KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"[{characters('4E00-9FA5 3040-309F 30A0-30FF')}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# Letters with case as DeepSeek LLM's pattern lists them, which is some of those in Unicode.
_CASED = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_CJK = f"[{characters('800-9FA5 AC00-D7FF')}]+"
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{characters(_CASED)}]+",
    rf"\s?[!-/:-~{characters('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
# Lines; the model itself cuts no further.
GEMMA4 = r"[^\n]+|[\n]+"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pre-split, and what else llama.cpp's loader takes from its name."""

    patterns: tuple[str, ...]
    whole_pieces_first: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        return PreTokenizer(tuple(Split(compile_pattern(pattern)) for pattern in self.patterns))


_LLAMA3 = Rule((LLAMA3,), whole_pieces_first=True, add_bos=True)
_QWEN2 = Rule((QWEN2,))
_O200K = Rule((O200K,))
_GLM4 = Rule((LLAMA3,))
RULES: dict[str, Rule] = {
    "gpt-2": Rule((GPT2,)),
    "smollm": Rule((DIGIT, GPT2)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": Rule((QWEN35,)),
    "minicpm5": Rule(MINICPM5, whole_pieces_first=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "deepseek-v3": Rule(DEEPSEEK_V3),
    "deepseek-llm": Rule(DEEPSEEK_LLM),
    "deepseek-coder": Rule(DEEPSEEK_CODER),
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "kimi-k2": Rule((KIMI_K2,)),
}


def rule_of(name: str) -> Rule:
    """The rule for `tokenizer.ggml.pre`. TokenizerError for an unknown name."""
    rule = RULES.get(name)
    if rule is None:
        raise TokenizerError(f"tokenizer.ggml.pre is {name!r}; supported: {', '.join(RULES)}")
    return rule
