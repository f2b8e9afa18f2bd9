"""Launchers of block-diagonal products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import constants
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.moe import input_source, product_shape
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.kernel.wgsl.source import compose
from zllm.linear import GroupedLinearSpec


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
        "COLUMNS": bank.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
        "ROWS": own,
        "RUNS": count,
        "GROUP_ROWS": rows,
        "BANK_ROW": first - bank.first_row,
        "X_GROUPS": x_groups,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(out=units)
    shape, sources, more, grid = product_shape(units, False, context.info)
    wgsl = compose(input_source(x, bank), *FORMATS[bank.format].sources, "grouped", *sources)
    access: tuple[Access, ...] = ("read", "read", "read", "read", "write")
    kernel = Kernel(f"grouped_{shape}_{bank.format}", wgsl, access, constants(values | more))
    # WGSL has no optional binding: for the norm x stands in.
    buffers = (bank.buffer, x.buffer, x.buffer, context.step, out.buffer)
    return Dispatch(kernel, buffers, grid)
