"""Drawing the next token: order, thresholds and the Gumbel-max draw that every backend repeats.

Order: repetition penalty, frequency and presence penalties, bias, temperature, top-k, top-p,
min-p, draw. Every filter is a threshold on the logit, so ties at the edge are kept and no backend
has to sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class SampleSpec:
    vocabulary: int
    full: bool  # False: every sequence takes the largest logit
    top_logprobs: int  # -1: no logprobs


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampling parameters of one sequence in one round."""

    temperature: float = 0.0  # 0: the largest logit
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    seed: tuple[int, int] = (0, 0)  # two 32-bit words
    position: int = 0  # of the token to be drawn


def penalise(logits: F32, counts: NDArray[np.int32], draw: Draw) -> F32:
    """[V] -> [V]. Repetition [1909.05858] counts prompt and answer, the other two the answer alone.

    counts: 2 × times generated + (1 if seen in the prompt or the answer).
    """
    repetition = np.float32(draw.repetition)
    seen = (counts & 1) > 0
    generated = (counts >> 1).astype(np.float32)
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    out = np.where(seen, repeated, logits)
    out = out - np.float32(draw.frequency) * generated
    return np.asarray(out - np.float32(draw.presence) * (generated > 0), np.float32)


def threshold(z: F32, draw: Draw) -> np.float32:
    """The smallest z that top-k, top-p [1904.09751] and min-p [2407.01082] keep, in this order.

    z [V]: (logit - largest) / temperature. top_p takes the smallest set whose probability,
    among those top-k keeps, reaches p; the likeliest token always stays.
    """
    edge = np.float32(-np.inf)
    if 0 < draw.top_k < z.size:
        edge = np.partition(z, z.size - draw.top_k)[z.size - draw.top_k]
    if draw.top_p < 1:
        kept = np.sort(z[z >= edge])[::-1]
        mass = np.cumsum(np.exp(kept), dtype=np.float64)
        reached = int(np.searchsorted(mass, draw.top_p * mass[-1]))
        edge = kept[min(reached, kept.size - 1)]
    if draw.min_p > 0:
        edge = max(edge, np.float32(np.log(np.float32(draw.min_p))))
    return np.float32(min(edge, np.float32(0)))


def sample(logits: F32, draw: Draw) -> int:
    """Draw a token from penalised, biased logits [V]; ties go to the lower id."""
    if draw.temperature <= 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
        z = (logits - logits.max()) / np.float32(draw.temperature)
    scores = np.where(z >= threshold(z, draw), z + gumbel(draw, logits.size), -np.inf)
    return int(np.argmax(scores))


def logprobs(logits: F32) -> F32:
    """log softmax of the model's own logits [V], before penalties and temperature."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def gumbel(draw: Draw, vocabulary: int) -> F32:
    """Gumbel noise [V] keyed by (seed, position, token): the same in every backend and batch.

    g = -log(-log1p(-v)) with v uniform in (0, 1): the draw is decided where v is small, and there
    f32 has relative precision; log(u) near u = 1 has none.
    """
    first, second = draw_keys(draw)
    tokens = np.arange(vocabulary, dtype=np.uint32)
    bits = mix(mix(tokens ^ first) ^ second) >> np.uint32(9)
    v = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -np.log(_minus_log1p_minus(v))


def draw_keys(draw: Draw) -> tuple[np.uint32, np.uint32]:
    """Two hash keys of a row: from the seed words and the absolute position."""
    words = np.array([draw.seed[0] & 0xFFFFFFFF, draw.seed[1] & 0xFFFFFFFF], np.uint32)
    position = np.array([draw.position], np.uint32)
    first = mix(mix(position ^ words[0]) ^ words[1])
    second = mix(first + np.uint32(0x9E3779B9))
    return np.uint32(first[0]), np.uint32(second[0])


def mix(x: U32) -> U32:
    """A 32-bit bijective hash (Wellons, "lowbias32": shifts 16 15 16)."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _minus_log1p_minus(v: F32) -> F32:
    """-log(1-v): its Taylor series where 1-v would round away the digits of v."""
    one = np.float32(1)
    series = np.full_like(v, 1 / 6)
    for n in (5, 4, 3, 2, 1):
        series = series * v + one / np.float32(n)
    return np.where(v < np.float32(2**-5), series * v, -np.log(one - np.minimum(v, one - 2**-24)))


def choice_seed(seed: int, choice: int) -> tuple[int, int]:
    """Two 32-bit words for a request's seed and the index of its choice (splitmix64)."""
    z = (seed + (choice + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32
