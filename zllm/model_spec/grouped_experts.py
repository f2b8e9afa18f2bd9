"""Experts behind a sigmoid router that first chooses groups [2412.19437, 2408.15664]."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields
from zllm.model_spec.fields import Fields


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    experts: int  # E
    chosen: int  # per token
    width: int  # F of one expert
    shared_width: int  # F of the expert that every token meets; 0: there is none
    groups: int = 1
    kept_groups: int = 1
    normalise: bool = True  # the chosen experts' weights are divided by their sum
    scale: float = 1.0  # of the weights


def from_hf(config: Fields) -> GroupedExperts:
    """ValueError names the field, got and expected."""
    # Other kinds exist in configs of this shape, for models that came before.
    fields.choice(config, "scoring_func", ("sigmoid",), "sigmoid")
    fields.choice(config, "topk_method", ("noaux_tc",), "noaux_tc")
    width, experts = (fields.size(config, k) for k in ("moe_intermediate_size", "n_routed_experts"))
    found = GroupedExperts(
        experts=experts,
        chosen=fields.size(config, "num_experts_per_tok"),
        width=width,
        shared_width=width * fields.count(config, "n_shared_experts", 0),
        groups=fields.size(config, "n_group", 1),
        kept_groups=fields.size(config, "topk_group", 1),
        normalise=fields.flag(config, "norm_topk_prob", True),
        scale=fields.positive(config, "routed_scaling_factor", 1.0),
    )
    check(found)
    return found


def check(found: GroupedExperts) -> None:
    """ValueError, in the words of the commoner spelling, if the numbers do not fit each other."""
    if found.experts % found.groups:
        raise ValueError(f"n_group: got {found.groups}, expected a divisor of {found.experts}")
    if found.kept_groups > found.groups:
        raise ValueError(
            f"topk_group: got {found.kept_groups}, expected at most n_group {found.groups}"
        )
    in_reach = found.experts // found.groups * found.kept_groups
    if found.chosen > in_reach:
        raise ValueError(
            f"num_experts_per_tok: got {found.chosen}, expected at most {in_reach}, the experts of"
            f" {found.kept_groups} groups"
        )


def sparse_layers(config: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: `mlp_layer_types`, or all from `first_k_dense_replace` on."""
    types = config.get("mlp_layer_types")
    if types is None:
        dense = fields.count(config, "first_k_dense_replace", 0)
        return tuple(i >= dense for i in range(layers))
    known = ("dense", "sparse")
    if not isinstance(types, list) or len(types) != layers or not set(types) <= set(known):
        raise ValueError(f"mlp_layer_types: got {types!r}, expected dense or sparse {layers} times")
    return tuple(kind == "sparse" for kind in types)
