"""What an op must read of the weights it is given."""

from __future__ import annotations

from typing import Any

from zllm.backend.contract import Op, Weight

BY_ROWS = frozenset({"embed", "route_by_token"})  # a row for each token: next to nothing


def weights_read(op: Op) -> list[Weight]:
    """The op's weights without those that are read a row at a time."""
    if op.name in BY_ROWS:
        return []
    found = [operand for operand in op.ins if isinstance(operand, Weight)]
    return [weight for weight in found if not weight.name.startswith("rope_table.")]


def chosen_share(op: Op, tokens: int) -> float:
    """Of an op's weights, what `tokens` tokens read that choose their experts independently."""
    if op.name != "experts":
        return 1.0
    routed: Any = op.ins[1]
    chosen = routed.shape[-1]
    return float(1 - (1 - chosen / op.spec.experts) ** tokens)
