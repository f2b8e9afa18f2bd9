"""Tensors of latent attention and of its indexer, as Hugging Face folders name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zllm.model_spec.latent import Index, Latent
from zllm.weight.names import Expected

# transformers, models/deepseek_v3/modeling_deepseek_v3.py
HF = {
    "q": "q_proj",
    "q_a": "q_a_proj",
    "q_norm": "q_a_layernorm",
    "q_b": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "kv_b": "kv_b_proj",
    "o": "o_proj",
}


def expected(
    canonical: str,
    stored: str,
    latent: Latent,
    *,
    heads: int,
    width: int,
    bias: bool,
    parts: Mapping[str, str] = HF,
) -> Iterator[Expected]:
    """The prefixes end in a dot: `layers.3.`, `model.layers.3.self_attn.`.

    `parts`: canonical name -> the file's. With `k_b` and `v_b` there, they stand for `kv_b`.
    """
    shapes = _shapes(latent, heads, width)
    skipped = {"q"} if latent.query_rank else {"q_a", "q_norm", "q_b"}
    for name, stored_name in parts.items():
        if name in skipped:
            continue
        yield Expected(canonical + name, f"{stored}{stored_name}.weight", shapes[name])
        if bias and name in ("q_a", "kv_a", "o"):
            stored_bias = f"{stored}{stored_name}.bias"
            yield Expected(f"{canonical}{name}.bias", stored_bias, shapes[name][:1])


def _shapes(latent: Latent, heads: int, width: int) -> dict[str, tuple[int, ...]]:
    n, r, v = latent.nope, latent.rotated, latent.value
    return {
        "q": (heads * (n + r), width),
        "q_a": (latent.query_rank, width),
        "q_norm": (latent.query_rank,),
        "q_b": (heads * (n + r), latent.query_rank),
        "kv_a": (latent.rank + r, width),
        "kv_norm": (latent.rank,),
        "kv_b": (heads * (n + v), latent.rank),
        "k_b": (heads, latent.rank, n),
        "v_b": (heads, v, latent.rank),
        "o": (width, heads * v),
    }


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
