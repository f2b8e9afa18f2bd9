"""Compressed attention: a window of raw keys, and entries for all that came before.

One head of keys serves all query heads, and keys are the values too. Window w of m tokens,
positions w·m … w·m + m - 1, becomes one entry once its last token exists. Heavily compressed
attention (HCA) sees every entry; compressed sparse attention (CSA) makes its entries of two
neighbouring windows, and an indexer chooses among them. The block that composes this names the
report that describes it.

Axes: T rows, S raw keys, E entries, H heads, K size of a key, m tokens of a window, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm import norm, rope
from zllm.attention import dsa, gqa, kpool
from zllm.attention.dsa import SelectSpec
from zllm.attention.gqa import GqaSpec
from zllm.norm import RmsNormSpec

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Mask = NDArray[np.bool_]
Positions = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class CompressedSpec:
    heads: int  # H
    size: int  # K
    window: int  # a row sees so many raw keys, its own included
    rate: int = 0  # m, tokens per entry; 0: there are no entries


@dataclass(frozen=True, slots=True)
class CompressorSpec:
    """How a window of tokens becomes an entry."""

    rate: int  # m
    size: int  # K, of an entry
    overlap: bool  # an entry is made of the window before as well
    rotated: int  # the last r numbers of an entry turn; pairs are (2j, 2j+1)
    eps: float  # of the entry's RMSNorm

    @property
    def width(self) -> int:
        """Numbers that a token gives: with overlap a half for the next window's entry, then one for
        its own window's."""
        return 2 * self.size if self.overlap else self.size


@dataclass(frozen=True, slots=True)
class SelectEntriesSpec:
    index: SelectSpec  # top_k counts entries
    rate: int  # m


def read_by(windows: Positions, spec: CompressorSpec, /) -> Positions:
    """Positions that entries of `windows` [W, m] are made of: [W, m], with overlap [W, 2m].

    Those of the window before the first are negative.
    """
    return np.concatenate([windows - spec.rate, windows], axis=1) if spec.overlap else windows


def entries(
    raw: tuple[F32, F32],
    read: Positions,
    weights: tuple[F32, F32],
    cos_sin: F32,
    spec: CompressorSpec,
    /,
) -> F32:
    """One entry per window: a softmax per channel over its tokens, normed and turned: [W, K].

    raw: keys and gates [W, m or 2m, width] of the tokens at `read`, any finite numbers at negative
    positions. weights: ape [m, width], added to the gates by place in the window,
    and the norm's [K]. cos_sin [W, r]: of each window's first position.
    """
    (kv, gates), (ape, norm_weight) = raw, weights
    if spec.overlap:
        kv, gates, ape = (_halves(x, spec) for x in (kv, gates, np.concatenate([ape, ape])))
        gates = np.where(read[..., None] < 0, np.float32(-np.inf), gates)
    pooled = kpool.pool_keys(kv, gates, ape)
    normed = norm.rms_norm(pooled, norm_weight, RmsNormSpec(spec.eps))
    turned = normed[:, None, spec.size - spec.rotated :]
    rope.rotate(turned.copy(), cos_sin, interleaved=True, out=turned)
    return normed


def _halves(x: F32, spec: CompressorSpec) -> F32:
    """[…, 2m, 2K] -> […, 2m, K]: the window before gives its first half, the own one its second."""
    before, own = x[..., : spec.rate, : spec.size], x[..., spec.rate :, spec.size :]
    return np.concatenate([before, own], axis=-2)


def complete(own: Positions, rate: int, /) -> Positions:
    """How many entries rows at positions `own` see: those whose last token they see."""
    return (own + 1) // rate


def select(q: F32, head_weights: F32, keys: F32, own: Positions, spec: SelectEntriesSpec, /) -> I32:
    """The entries that each row attends to, ascending, -1 padded: [T, top_k].

    q [T, I, e], head_weights [T, I], index entries `keys` [E, e] in order, own [T] positions.
    """
    scores = dsa.score(q, head_weights, keys, spec.index)
    chosen = dsa.best(scores, complete(own, spec.rate), spec.index.top_k)
    return dsa.positions(chosen, spec.index.top_k)


def seen_entries(own: Positions, chosen: I32 | None, rate: int, /) -> Mask:
    """Which entries each row sees: all complete ones, or those of `chosen` [T, k]: [T, E].

    E: entries complete for the last row; own ascends.
    """
    counts = complete(own, rate)
    if chosen is None:
        return np.asarray(np.arange(counts[-1]) < counts[:, None])
    seen = np.zeros((len(own), int(counts[-1])), np.bool_)
    rows, columns = np.nonzero(chosen >= 0)
    seen[rows, chosen[rows, columns]] = True
    return seen


def in_window(own: Positions, positions: Positions, window: int, /) -> Mask:
    """Which raw keys each row sees: own [T], positions [S] -> [T, S]."""
    distance = own[:, None] - positions
    return np.asarray((distance >= 0) & (distance < window))


def attend(
    q: F32,
    raw: F32,
    compressed: F32,
    seen: Mask,
    spec: CompressedSpec,
    /,
    *,
    sinks: F32,
    out: F32 | None = None,
) -> F32:
    """One softmax over raw keys, entries and a sink per head: [T, H, K] -> [T, H, K].

    raw [S, K], compressed [E, K], seen [T, S + E], sinks [H]. Keys and queries carry their
    rotation, and so does the result: it is to be turned back by the row's position.
    """
    keys = np.concatenate([raw, compressed])[None]
    heads = GqaSpec(spec.heads, 1, spec.size, spec.size**-0.5, rotated=0)
    return gqa.attend(q, keys, keys, seen, heads, sinks=sinks, out=out)
