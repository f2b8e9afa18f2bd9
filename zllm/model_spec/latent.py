"""Sizes of multi-head latent attention [2405.04434] and of its indexer [2512.02556]."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields
from zllm.model_spec.fields import Fields


@dataclass(frozen=True, slots=True)
class Latent:
    """Per head a query of nope + rotated numbers and a value."""

    query_rank: int  # Q, of the query's latent; 0: queries come straight from the input
    rank: int  # R, of the latent that keys and values share
    nope: int  # n, without position
    rotated: int  # r, may be 0
    value: int  # v


@dataclass(frozen=True, slots=True)
class Index:
    """Which keys the attention sees."""

    heads: int  # I
    size: int  # e, of a head
    top_k: int  # keys chosen


def from_hf(config: Fields, *, value: int | None = None) -> Latent:
    """`value`: a head's value size where the config leaves it out. ValueError names the field."""
    rotated = fields.count(config, "qk_rope_head_dim")
    if rotated % 2:
        raise ValueError(f"qk_rope_head_dim: got {rotated}, expected an even number: pairs turn")
    return Latent(
        query_rank=0 if config.get("q_lora_rank") is None else fields.size(config, "q_lora_rank"),
        rank=fields.size(config, "kv_lora_rank"),
        nope=fields.size(config, "qk_nope_head_dim"),
        rotated=rotated,
        value=fields.size(config, "v_head_dim", value),
    )


def index_from_hf(config: Fields, rotated: int) -> Index:
    """`rotated` of each head's numbers turn. ValueError names the field."""
    size = fields.size(config, "index_head_dim")
    if size < rotated:
        raise ValueError(f"index_head_dim: got {size}, expected at least {rotated}, which turn")
    top_k = fields.size(config, "index_topk")
    return Index(fields.size(config, "index_n_heads"), size, top_k)


def choosing_layers(config: Fields, layers: int, *, first: int = 0) -> tuple[bool, ...]:
    """Which layers have an indexer of their own [2603.12201]; the others use the latest choice.

    `indexer_types`, else the letters F and S of `index_topk_pattern`, else every
    `index_topk_freq`-th layer. first: the first layer that chooses or takes a choice at all.
    ValueError names the field.
    """
    key = "index_topk_pattern" if config.get("indexer_types") is None else "indexer_types"
    types = config.get(key)
    if types is None:
        every = fields.size(config, "index_topk_freq", 1)
        skipped = fields.count(config, "index_skip_topk_offset", 2)
        return tuple(max(i - skipped + 1, 0) % every == 0 for i in range(layers))
    letters = {"F": True, "S": False, "full": True, "shared": False}
    known = isinstance(types, (str, list)) and all(kind in letters for kind in types)
    if not known or len(types) != layers:
        raise ValueError(f"{key}: got {types!r}, expected full or shared {layers} times")
    chooses = tuple(letters[kind] for kind in types)
    if not chooses[first]:
        raise ValueError(f"{key}: layer {first} is shared, but no layer before it has an indexer")
    return chooses
