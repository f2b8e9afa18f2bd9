"""How a device likes its matrix products: settings of kernels by format and number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# product_<kernel>.wgsl of several tokens. "pairs" is for formats of codes_<format>.wgsl and devices
# with subgroups; elsewhere, and for one token, it means "staged".
Kernel = Literal["staged", "shared", "pairs"]


@dataclass(frozen=True, slots=True)
class Few:
    """Of the kernels for few tokens."""

    threads: int  # of a workgroup
    rows: int  # matrix rows of a team; even
    lanes: int  # of a team
    kernel: Kernel = "staged"


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting for banks of a format and up to so many tokens."""

    format: str  # "" for every other
    tokens: int
    few: Few


# Measured on an H200, where they are among the best for every format; others were not at hand.
DEFAULT = (
    Choice("f16", 1, Few(256, 4, 32)),
    Choice("bf16", 1, Few(256, 4, 32)),
    Choice("", 1, Few(128, 4, 32)),
    Choice("", 1 << 30, Few(128, 4, 16)),
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Of the choices that fit, the one for the fewest tokens is taken, and the first of those."""

    choices: tuple[Choice, ...] = ()
    few_tokens: int = 8  # above it, tiles
    wide_tokens: int = 65  # from it on, the wider tiles

    def few(self, format: str, tokens: int) -> Few:
        fitting = (
            choice
            for choice in (*self.choices, *DEFAULT)
            if choice.format in ("", format) and tokens <= choice.tokens
        )
        return min(fitting, key=lambda choice: choice.tokens).few


UNTUNED = Tuning()
