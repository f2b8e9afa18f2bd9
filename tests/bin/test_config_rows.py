"""Configs as rows, whatever their fields are called."""

from __future__ import annotations

from dataclasses import dataclass, field

from zllm.bin.config_rows import config_rows


@dataclass(frozen=True, slots=True)
class Turn:
    theta: float
    scaling: str = "default"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Inner:
    width: int
    turn: Turn = field(default=Turn(1.0))
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    layers: int
    eps: float
    inner: Inner
    local: Turn | None
    windows: tuple[int, ...]
    kinds: tuple[str, ...]
    tied: bool
    activation: str


def test_rows() -> None:
    inner = Inner(8, Turn(1e6, factors=(1.0, 2.0)))
    config = Config(3, 1e-5, inner, None, (8, 0), tuple("abcde"), True, "silu")
    assert config_rows(config) == [
        ("sizes", "layers 3, eps 1e-05, windows 8/0, kinds of 5"),
        ("switches", "tied yes, activation silu"),
        ("inner", "width 8"),
        ("turn", "theta 1e+06, factors 1/2"),
    ]


def test_sections_show_what_is_not_usual() -> None:
    config = Config(3, 1e-5, Inner(8, tied=True), Turn(2.0, "linear"), (), (), False, "silu")
    assert config_rows(config)[2:] == [
        ("inner", "width 8, tied yes"),
        ("local", "theta 2, scaling linear"),
    ]
