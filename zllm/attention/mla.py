"""Multi-head latent attention [2405.04434, 2412.19437]: keys and values unfold from one latent.

A token keeps [c | k_r]: its normed latent, and one key of r numbers for all heads. Per head the
rows of `kv_b` are U [n, R], which unfolds keys, then V [v, R], which unfolds values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.attention import gqa
from zllm.attention.gqa import GqaSpec

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Per head a query of n + r numbers, n without position first; values of v numbers."""

    heads: int  # H
    nope: int  # n, qk_nope_head_dim
    rotated: int  # r, qk_rope_head_dim; may be 0
    value: int  # v, v_head_dim
    rank: int  # R of the latent, kv_lora_rank
    scale: float


def by_head(kv_b: F32, spec: MlaSpec, /) -> tuple[F32, F32]:
    """[H·(n+v), R] -> U [H, n, R], V [H, v, R]: views."""
    unfold = kv_b.reshape(spec.heads, spec.nope + spec.value, spec.rank)
    return unfold[:, : spec.nope], unfold[:, spec.nope :]


def expand(latents: F32, kv_b: F32, spec: MlaSpec, /) -> tuple[F32, F32]:
    """Keys [U c ; k_r] and values V c of each head: [S, R+r] -> [H, S, n+r], [H, S, v]."""
    u, v = by_head(kv_b, spec)
    c = latents[:, : spec.rank]
    keys = np.empty((spec.heads, len(latents), spec.nope + spec.rotated), np.float32)
    np.matmul(c, u.transpose(0, 2, 1), out=keys[..., : spec.nope])
    keys[..., spec.nope :] = latents[:, spec.rank :]
    return keys, np.matmul(c, v.transpose(0, 2, 1))


def attend_expanded(
    q: F32,
    keys: F32,
    values: F32,
    visible: NDArray[np.bool_] | None,
    spec: MlaSpec,
    /,
    *,
    out: F32 | None = None,
) -> F32:
    """Attention with a key/value head per query head: q [T, H, n+r] and `expand` -> [T, H, v].

    `visible` as in `gqa.attend`.
    """
    size = spec.nope + spec.rotated
    heads = GqaSpec(spec.heads, spec.heads, size, spec.scale, size)
    return gqa.attend(q, keys, values, visible, heads, out=out)


def absorb(q: F32, kv_b: F32, spec: MlaSpec, /) -> F32:
    """Queries that meet latents: q [T, H, n+r] -> [Uᵀ q_nope | q_r] [T, H, R+r]."""
    u, _ = by_head(kv_b, spec)
    absorbed = np.empty((*q.shape[:2], spec.rank + spec.rotated), np.float32)
    nope = q[..., : spec.nope].transpose(1, 0, 2)  # [H, T, n]
    absorbed[..., : spec.rank] = np.matmul(nope, u).transpose(1, 0, 2)
    absorbed[..., spec.rank :] = q[..., spec.nope :]
    return absorbed


def unfold(mixed: F32, kv_b: F32, spec: MlaSpec, /, *, out: F32 | None = None) -> F32:
    """The heads' values of weighted sums of latents: V (Σ p c), [T, H, R] -> [T, H, v]."""
    _, v = by_head(kv_b, spec)
    heads = np.matmul(mixed.transpose(1, 0, 2), v.transpose(0, 2, 1)).transpose(1, 0, 2)
    if out is None:
        return np.ascontiguousarray(heads)
    np.copyto(out, heads)
    return out


def attend_absorbed(
    q: F32,
    latents: F32,
    kv_b: F32,
    visible: NDArray[np.bool_] | None,
    spec: MlaSpec,
    /,
    *,
    out: F32 | None = None,
) -> F32:
    """The same numbers without unfolding keys: one key/value head, whose value is c.

    q [T, H, n+r], latents [S, R+r] -> [T, H, v]. `visible` as in `gqa.attend`.
    """
    size = spec.rank + spec.rotated
    heads = GqaSpec(spec.heads, 1, size, spec.scale, size)
    queries = absorb(q, kv_b, spec)
    mixed = gqa.attend(queries, latents[None], latents[None, :, : spec.rank], visible, heads)
    return unfold(mixed, kv_b, spec, out=out)


def attend_chosen(
    q: F32,
    latents: F32,
    kv_b: F32,
    chosen: NDArray[np.bool_],
    spec: MlaSpec,
    /,
    *,
    out: F32 | None = None,
) -> F32:
    """Each row sees keys of its own: absorbed, O(T·k) whatever the length of the sequence.

    q [T, H, n+r], latents [T, k, R+r], chosen [T, k] says which of them count -> [T, H, v]. A row
    that sees nothing gives zeros.
    """
    queries = absorb(q, kv_b, spec) * np.float32(spec.scale)
    scores: F32 = np.matmul(queries, latents.transpose(0, 2, 1))  # [T, H, k]
    np.copyto(scores, np.float32(-np.inf), where=~chosen[:, None])
    mixed = np.matmul(gqa.softmax(scores), latents[..., : spec.rank])  # [T, H, R]
    return unfold(mixed, kv_b, spec, out=out)


def absorbed_is_cheaper(rows: int, keys: int, spec: MlaSpec, /) -> bool:
    """Whether `rows` queries over `keys` latents take fewer products absorbed than expanded."""
    per_token = (spec.nope + spec.value) * spec.rank
    absorbed = rows * per_token + rows * keys * (2 * spec.rank + spec.rotated)
    expanded = keys * per_token + rows * keys * (spec.nope + spec.rotated + spec.value)
    return absorbed <= expanded
