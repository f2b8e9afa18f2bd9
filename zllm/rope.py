"""Rotary position embedding [2104.09864] and its frequency scalings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """r rotated dimensions; pair j turns by position · frequency j."""

    rotated: int  # r
    theta: float
    scaling: str = "default"  # default | linear | by_wavelength
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    divisors: tuple[float, ...] = ()  # per pair, as GGUF stores it: the frequency is divided


@dataclass(frozen=True, slots=True)
class RotateSpec:
    """Which part of each head turns: dimensions first … first + rotated of head_size."""

    heads: int
    head_size: int
    first: int
    rotated: int  # r
    interleaved: bool  # pairs are (2j, 2j+1), not (j, j + r/2)
    inverse: bool = False  # turn back: by minus the angle


def frequencies(spec: RopeSpec) -> F32:
    """Radians per position of each pair: [r/2]. f32, as the peers compute them."""
    exponent = np.arange(0, spec.rotated, 2, dtype=np.float32) / np.float32(spec.rotated)
    period: F32 = np.power(np.float32(spec.theta), exponent)
    f: F32 = np.float32(1) / period
    if spec.divisors:
        divisors: F32 = np.asarray(spec.divisors, np.float32)
        f = f / divisors
    if spec.scaling == "linear":
        f = f / np.float32(spec.factor)
    elif spec.scaling == "by_wavelength":
        f = _by_wavelength(f, spec)
    return f


def _by_wavelength(f: F32, spec: RopeSpec) -> F32:
    """Long wavelengths are stretched by `factor`, short ones kept, a blend between [2407.21783]."""
    turns = spec.original_context / (2 * np.pi / f.astype(np.float64))
    low, high = spec.low_freq_factor, spec.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * f / spec.factor + smooth * f).astype(np.float32)


def table(spec: RopeSpec, context: int) -> F32:
    """cos of every pair, then sin of every pair, for positions 0 … context-1: [context, r].

    Angles in f64: f32 products lose the angle at long positions.
    """
    angle = np.outer(np.arange(context, dtype=np.float64), frequencies(spec).astype(np.float64))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def rotate(x: F32, cos_sin: F32, *, interleaved: bool, out: F32 | None = None) -> F32:
    """Turn the first r of the last axis by its row's angles: [R, heads, K], [R, r] -> the same.

    Pairs are (j, j + r/2), or (2j, 2j+1) if interleaved.
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    if out is None:
        out = np.empty_like(x)
    first, second = _pairs(2 * half, interleaved)
    a, b = x[..., first], x[..., second]
    np.subtract(a * cos, b * sin, out=out[..., first])
    np.add(b * cos, a * sin, out=out[..., second])
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def _pairs(rotated: int, interleaved: bool) -> tuple[slice, slice]:
    if interleaved:
        return slice(0, rotated, 2), slice(1, rotated, 2)
    return slice(0, rotated // 2), slice(rotated // 2, rotated)
