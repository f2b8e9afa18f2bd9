"""How a device likes its matrix products: settings of kernels by format and number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# product_<kernel>.wgsl of several tokens; "pairs" is for formats of codes_<format>.wgsl and devices
# with subgroups, and is passed over elsewhere and for one token.
Kernel = Literal["staged", "pairs"]


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
    Choice("q4_0", 1 << 30, Few(128, 4, 32, "pairs")),
    Choice("q4_1", 1 << 30, Few(128, 4, 32, "pairs")),
    Choice("q8_0", 1 << 30, Few(128, 4, 32, "pairs")),
    Choice("", 1 << 30, Few(128, 4, 16)),
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Of the choices that fit, the one for the fewest tokens is taken, and the first of those."""

    choices: tuple[Choice, ...] = ()
    few_tokens: int = 16  # above it, tiles
    pair_tokens: int = 64  # likewise, where there is product_pairs
    wide_tokens: int = 65  # from it on, the wider tiles

    def few(self, format: str, tokens: int, *, pairs: bool) -> Few:
        """pairs: whether the device has product_pairs for the format."""
        fitting = (
            choice
            for choice in (*self.choices, *DEFAULT)
            if choice.format in ("", format)
            and tokens <= choice.tokens
            and (pairs or choice.few.kernel != "pairs")
        )
        return min(fitting, key=lambda choice: choice.tokens).few


UNTUNED = Tuning()
