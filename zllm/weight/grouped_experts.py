"""Tensors of a feed-forward layer, with or without experts, as Hugging Face folders name them."""

from __future__ import annotations

from collections.abc import Iterator

from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.weight import experts
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.names import Expected


def gated(canonical: str, stored: str, width: int, ffn_width: int) -> Iterator[Expected]:
    """One gated layer. The prefixes end in a dot: `layers.3.`, `model.layers.3.mlp.`."""
    for part, shape in (
        ("gate", (ffn_width, width)),
        ("up", (ffn_width, width)),
        ("down", (width, ffn_width)),
    ):
        yield Expected(canonical + part, f"{stored}{part}_proj.weight", shape)


def expected(
    canonical: str, stored: str, sizes: GroupedExperts, width: int, names: ExpertNames
) -> Iterator[Expected]:
    """The router with its correction, the experts, and the one that every token meets."""
    e = sizes.experts
    yield Expected(f"{canonical}router", f"{stored}gate.weight", (e, width))
    correction = f"{stored}gate.e_score_correction_bias"
    yield Expected(f"{canonical}router.correction", correction, (e,))
    yield from experts.expected(canonical, stored, ExpertSizes(e, width, sizes.width), names)
    if sizes.shared_width:
        shared = f"{stored}shared_experts."
        yield from gated(f"{canonical}shared.", shared, width, sizes.shared_width)
