"""Nothing below the runtime names a model: not in code, not in a comment, not in a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zllm"
NEUTRAL = (
    "backend",
    "kernel",
    "attention",
    "moe",
    "kv_cache",
    "quant",
    "norm.py",
    "rope.py",
    "activation.py",
    "hyper_connection.py",
    "sampling.py",
)
SUFFIXES = (".py", ".wgsl", ".js", ".c", ".cu", ".h", ".cpp", ".hip", ".m", ".metal")
FAMILIES = {"deepseek", "gemma", "glm", "gpt_oss", "kimi", "llama", "minicpm", "qwen", "smollm"}
# The project whose GGUF format quant/ implements, not a model.
ALLOWED = re.compile(r"llama\.cpp", re.IGNORECASE)


def model_names() -> set[str]:
    modules = (PACKAGE / "model_spec").glob("*.py")
    return FAMILIES | {path.stem for path in modules if "MODEL_TYPES" in path.read_text("utf-8")}


def named_models(text: str) -> list[str]:
    """The model names in a text; a version may follow one (qwen3), a longer word may not."""
    names = "|".join(re.escape(name).replace("_", "[-_ ]?") for name in sorted(model_names()))
    pattern = re.compile(rf"(?<![a-z])(?:{names})(?![a-z])", re.IGNORECASE)
    return pattern.findall(ALLOWED.sub("", text))


def neutral_files() -> list[Path]:
    roots = [PACKAGE / name for name in NEUTRAL]
    found = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    return sorted(path for path in found if path.suffix in SUFFIXES)


def test_neutral_files_are_found() -> None:
    folders = {path.relative_to(PACKAGE).parts[0] for path in neutral_files()}
    assert {"backend", "kernel", "attention", "quant", "norm.py"} <= folders


@pytest.mark.parametrize("path", neutral_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_names_no_model(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = {number: named_models(line) for number, line in enumerate(text.splitlines(), 1)}
    assert not named_models(path.stem)
    assert {number: names for number, names in lines.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# fast path for qwen3", ["qwen"]),
        ("if name == 'SmolLM2':", ["SmolLM"]),
        ("LLAMA_HEADS = 9", ["LLAMA"]),
        ("gpt-oss and gpt_oss", ["gpt-oss", "gpt_oss"]),
        ("block layout: llama.cpp, ggml-quants.c", []),
        ("the llama.cpp file and llama", ["llama"]),
        ("gamma and sigma, glmnet, llamas", []),
    ],
)
def test_names_are_recognised(text: str, found: list[str]) -> None:
    assert named_models(text) == found
