"""Rotary position embedding [2104.09864] and its frequency scalings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """r rotated dimensions; pair j turns by position · frequency j."""

    rotated: int  # r
    theta: float
    scaling: str = "default"  # default | linear | by_wavelength | yarn
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    divisors: tuple[float, ...] = ()  # per pair: the frequency is divided
    long_divisors: tuple[float, ...] = ()  # those of sequences longer than original_context
    beta_fast: float = 32.0  # yarn: pairs with more turns in original_context are kept,
    beta_slow: float = 1.0  # those with fewer are stretched by the whole factor
    truncate: bool = True  # yarn: round both bounds to whole pairs
    attention_factor: float = 1.0  # multiplies cos and sin


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
    elif spec.scaling == "yarn":
        f = _yarn(f, spec)
    return f


def _by_wavelength(f: F32, spec: RopeSpec) -> F32:
    """Long wavelengths are stretched by `factor`, short ones kept, a blend between [2407.21783]."""
    turns = spec.original_context / (2 * np.pi / f.astype(np.float64))
    low, high = spec.low_freq_factor, spec.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * f / spec.factor + smooth * f).astype(np.float32)


def _yarn(f: F32, spec: RopeSpec) -> F32:
    """A ramp over pairs, from those kept to those stretched by `factor` [2309.00071 §3.2]."""
    low, high = _pair_turning(spec.beta_fast, spec), _pair_turning(spec.beta_slow, spec)
    if spec.truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0.0), min(high, spec.rotated - 1.0)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(f.size) - low) / width, 0, 1)
    return np.asarray(f / spec.factor * stretched + f * (1 - stretched), np.float32)


def _pair_turning(turns: float, spec: RopeSpec) -> float:
    """The pair, a fraction too, that turns so often within `original_context` positions."""
    wavelength = spec.original_context / (2 * np.pi * turns)
    return float(spec.rotated * np.log(wavelength) / (2 * np.log(spec.theta)))


def table(spec: RopeSpec, context: int) -> F32:
    """cos of every pair, then sin of every pair, for positions 0 … context-1: [context, r].

    With `long_divisors` [2·context, r]: a sequence that will outgrow `original_context` reads row
    context + position from its first token on [2402.13753].
    """
    rows = _cos_sin(spec, context)
    if not spec.long_divisors:
        return rows
    long = replace(spec, divisors=spec.long_divisors, long_divisors=())
    return np.concatenate([rows, _cos_sin(long, context)])


def _cos_sin(spec: RopeSpec, context: int) -> F32:
    """Angles in f64: f32 products lose the angle at long positions."""
    angle = np.outer(np.arange(context, dtype=np.float64), frequencies(spec).astype(np.float64))
    rows = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * spec.attention_factor
    return rows.astype(np.float32)


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
