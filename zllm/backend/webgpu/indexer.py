"""Launchers of the indexer of sparse attention: its keys, or pools of them, and its choice."""

from __future__ import annotations

from zllm.backend.contract import Op
from zllm.backend.webgpu import selection
from zllm.backend.webgpu.device import Access, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, strided_grid
from zllm.backend.webgpu.latent import append
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose


def lower_index_append(op: Op, context: Context) -> list[Dispatch]:
    if op.ins[2] is None:
        return [append(context.view(op.value(0)), None, op.cache(1), context)]
    k, gate, cache = context.view(op.value(0)), context.view(op.value(2)), op.cache(1)
    (ape,) = context.banks(op.weight(3))
    assert ape.format == "f32" and ape.row_words == ape.columns, ape
    store, at = context.store(cache), context.layout.offset
    values: dict[str, float] = {
        "SIZE": k.columns,
        "POOL": op.weight(3).shape[0],
        "ROW_SLOT": at[f"{cache.group}.row_slot"],
        "SEQ": at["seq"],
        "POSITION": at["position"],
        "FIRST_ROW": at["first_row"],
        "VALID_ROWS": at["valid_rows"],
        "TABLE": at[f"{cache.group}.table"],
        "ENTRIES": context.layout.table_entries[cache.group],
        "PAGE_SLOTS": store.page_slots,
    } | places(k=k, gate=gate)
    read: Access = "read"
    access: tuple[Access, ...] = (*[read] * 4, "write", "write", "write")
    wgsl = compose("page_slot", "index_append_pools")
    kernel = Kernel("index_append_pools", wgsl, access, constants(values))
    buffers = (k.buffer, gate.buffer, ape.buffer, context.step, *store.buffers)
    grid = strided_grid(ceil_div(k.rows * k.columns, 64), context.info)
    return [Dispatch(kernel, buffers, grid)]


def missing_select(op: Op, info: DeviceInfo) -> str | None:
    return selection.missing_selection(op.spec)


def lower_select(op: Op, context: Context) -> list[Dispatch]:
    return selection.lower_selection(op, context, op.spec, op.spec.pool, expand=True)
