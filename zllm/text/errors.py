"""Errors of this package that users may see."""

from __future__ import annotations

from zllm.errors import ZllmError


class TokenizerError(ZllmError):
    """A tokenizer file is damaged or asks for a component that is not supported."""


class TemplateError(ZllmError):
    """A chat template cannot be compiled, fails on these messages, or asks for too much."""
