"""Tensors of latent attention and of its indexer, as Hugging Face folders name them."""

from __future__ import annotations

from collections.abc import Iterator

from zllm.model_spec.latent import Index, Latent
from zllm.weight.names import Expected


def expected(
    canonical: str, stored: str, latent: Latent, *, heads: int, width: int, bias: bool
) -> Iterator[Expected]:
    """The prefixes end in a dot: `layers.3.`, `model.layers.3.self_attn.`."""
    query = heads * (latent.nope + latent.rotated)
    down = latent.rank + latent.rotated
    biased = [("kv_a", "kv_a_proj_with_mqa", down), ("o", "o_proj", width)]
    if latent.query_rank:
        biased.append(("q_a", "q_a_proj", latent.query_rank))
        yield _matrix(canonical + "q_a", stored + "q_a_proj", latent.query_rank, width)
        yield _vector(canonical + "q_norm", stored + "q_a_layernorm.weight", latent.query_rank)
        yield _matrix(canonical + "q_b", stored + "q_b_proj", query, latent.query_rank)
    else:
        yield _matrix(canonical + "q", stored + "q_proj", query, width)
    yield _matrix(canonical + "kv_a", stored + "kv_a_proj_with_mqa", down, width)
    yield _vector(canonical + "kv_norm", stored + "kv_a_layernorm.weight", latent.rank)
    unfolded = heads * (latent.nope + latent.value)
    yield _matrix(canonical + "kv_b", stored + "kv_b_proj", unfolded, latent.rank)
    yield _matrix(canonical + "o", stored + "o_proj", width, heads * latent.value)
    for name, stored_name, size in biased if bias else ():
        yield _vector(f"{canonical}{name}.bias", f"{stored}{stored_name}.bias", size)


def expected_index(
    canonical: str, stored: str, index: Index, *, query_rank: int, width: int
) -> Iterator[Expected]:
    """The prefixes end in a dot: `layers.3.`, `model.layers.3.self_attn.indexer.`."""
    here = f"{canonical}index."
    yield _matrix(here + "q", stored + "wq_b", index.heads * index.size, query_rank)
    yield _matrix(here + "k", stored + "wk", index.size, width)
    yield _vector(here + "k_norm", stored + "k_norm.weight", index.size)
    yield _vector(here + "k_norm.bias", stored + "k_norm.bias", index.size)
    yield _matrix(here + "weights", stored + "weights_proj", index.heads, width)


def _matrix(name: str, stored: str, rows: int, columns: int) -> Expected:
    return Expected(name, f"{stored}.weight", (rows, columns))


def _vector(name: str, stored: str, size: int) -> Expected:
    return Expected(name, stored, (size,))
