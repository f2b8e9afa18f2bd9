"""Launchers of block-diagonal products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Dispatch
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.experts import TILE_PAIRS, product, product_shape, tiles_shape
from zllm.backend.webgpu.kernels import ceil_div
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.linear import GroupedLinearSpec

MANY_ROWS = 8  # a tile of rows beats streaming the matrix for each


def lower_grouped_linear(op: Op, context: Context) -> list[Dispatch]:
    """A dispatch for a bank's whole groups, and one for each group that banks share."""
    spec: GroupedLinearSpec = op.spec
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    rows = out.columns // spec.groups
    # A group's columns of neighbouring rows of x are a whole number of groups apart, or one by one.
    together = x.stride % (x.columns // spec.groups) == 0
    return [
        _grouped(x, out, bank, first, end, spec.groups, context)
        for bank in context.banks(op.weight(1))
        for first, end in _pieces(bank, rows, together)
    ]


def _pieces(bank: Bank, rows: int, together: bool) -> Iterator[tuple[int, int]]:
    """Runs of the bank's rows, counted in the matrix: of whole groups, or within one."""
    at, last = bank.first_row, bank.first_row + bank.rows
    while at < last:
        end = (at // rows + 1) * rows
        if at % rows == 0 and together:
            end = max(end, last // rows * rows)
        yield at, min(end, last)
        at = min(end, last)


def _grouped(
    x: View, out: View, bank: Bank, first: int, end: int, groups: int, context: Context
) -> Dispatch:
    rows = out.columns // groups
    count = max(1, (end - first) // rows)
    own = end - first if count == 1 else rows
    x = replace(x, offset=x.offset + first // rows * bank.columns)
    x_groups = 1
    if count > 1:
        x_groups, x = x.stride // bank.columns, replace(x, stride=bank.columns)
    units = View(out.buffer, out.offset + first, out.stride, out.rows * count, own)
    values: dict[str, float] = {
        "ROWS": own,
        "RUNS": count,
        "GROUP_ROWS": rows,
        "BANK_ROW": first - bank.first_row,
        "X_GROUPS": x_groups,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(out=units)
    header, shape = "grouped", product_shape(bank, units, False, context.info)
    if out.rows > MANY_ROWS and not context.info.software:
        tiles = count * ceil_div(out.rows, TILE_PAIRS)
        header, shape = "grouped_tiles", tiles_shape(own, False, TILE_PAIRS, tiles, context.info)
        values["TILE_PAIRS"] = TILE_PAIRS
    return product(bank, x, header, shape, values, (context.step, out.buffer))
