"""Launchers of an indexer's choice: scores of keys, then the best of each row, exactly."""

from __future__ import annotations

from zllm.attention.dsa import SelectSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll

SCORE_BYTES = 64 << 20  # of the rows that are scored at once
TILE_KEYS = 32
# llvmpipe ends a thread's loops silently after 65,535 turns in all, nested ones counted; each key
# takes about six.
LANE_KEYS = 8192


def missing_selection(spec: SelectSpec) -> str | None:
    if spec.size % 4:
        return f"index keys of {spec.size} numbers; they must be a multiple of 4"
    return None


def lower_selection(
    op: Op, context: Context, spec: SelectSpec, rate: int, *, expand: bool
) -> list[Dispatch]:
    """q [R, I·e], head weights [R, I], cache -> i32 [R, k], ascending and -1 padded.

    Key j is that of positions j·rate … j·rate + rate - 1 and lies in the cache's last array, in the
    slot of the last of them. expand: a chosen key stands for its positions, else for j.
    """
    longest = context.key.context // rate  # keys of a row
    most = spec.top_k // rate if expand else spec.top_k
    rows = context.view(op.outs[0]).rows
    stride = ceil_div(max(longest, 1), 4) * 4
    if longest <= most:  # every row takes all of its keys
        scores = context.scratch(16)
        return [_choose(op, context, spec, scores, (rate, expand, most, stride), 0, rows)]
    at_once = max(1, min(rows, SCORE_BYTES // (4 * stride)))
    scores = context.scratch(4 * at_once * stride)
    dispatches = []
    for begin in range(0, rows, at_once):
        part = (begin, min(at_once, rows - begin))
        dispatches.append(_score(op, context, spec, scores, (rate, most, stride), *part))
        how = (rate, expand, most, stride)
        dispatches.append(_choose(op, context, spec, scores, how, *part))
    return dispatches


def _score(
    op: Op,
    context: Context,
    spec: SelectSpec,
    scores: Buffer,
    how: tuple[int, int, int],
    begin: int,
    rows: int,
) -> Dispatch:
    rate, most, stride = how
    q, head_weights = context.view(op.value(0)), context.view(op.value(1))
    cache = op.cache(2)
    store, at = context.store(cache), context.layout.offset
    assert not (q.offset | q.stride) % 4, q
    values: dict[str, float] = {
        "ROWS": rows,
        "BEGIN": begin,
        "HEADS": spec.heads,
        "QUADS": spec.size // 4,
        "SCALE": spec.size**-0.5,
        "RATE": rate,
        "MOST_CHOSEN": most,
        "SCORES_STRIDE": stride,
        "VALID_ROWS": at["valid_rows"],
        "POSITION": at["position"],
        "SEQ": at["seq"],
        "TABLE": at[f"{cache.group}.table"],
        "ENTRIES": context.layout.table_entries[cache.group],
        "PAGE_SLOTS": store.page_slots,
    } | places(q=q, weights=head_weights)
    shape = "score_keys_lanes" if context.info.software else "score_keys_tile"
    access: tuple[Access, ...] = ("read", "read", "read", "read", "write")
    wgsl = unroll(compose("page_slot", "score_keys", shape), {})
    buffers = (q.buffer, head_weights.buffer, store.buffers[-1], context.step, scores)
    most_groups = context.info.max_grid
    grid = (min(ceil_div(stride, TILE_KEYS), most_groups), min(rows, most_groups), 1)
    return Dispatch(Kernel(shape, wgsl, access, constants(values)), buffers, grid)


def _choose(
    op: Op,
    context: Context,
    spec: SelectSpec,
    scores: Buffer,
    how: tuple[int, bool, int, int],
    begin: int,
    rows: int,
) -> Dispatch:
    rate, expand, most, stride = how
    out, info, at = context.view(op.outs[0]), context.info, context.layout.offset
    values: dict[str, float] = {
        "THREADS": choosing_threads(stride, info),
        "ROWS": rows,
        "BEGIN": begin,
        "SCORES_STRIDE": stride,
        "MOST_CHOSEN": most,
        "RATE": rate,
        "EXPAND": expand,
        "TAIL": expand and spec.tail,
        "VALID_ROWS": at["valid_rows"],
        "POSITION": at["position"],
        "OUT_COLUMNS": out.columns,
    } | places(out=out)
    access: tuple[Access, ...] = ("read", "read", "write")
    kernel = Kernel("choose_scored", compose("choose_scored"), access, constants(values))
    return Dispatch(kernel, (scores, context.step, out.buffer), strided_grid(rows, info))


def choosing_threads(keys: int, info: DeviceInfo) -> int:
    """Of a row's workgroup. Software adapters like a subgroup, as long as it comes to an end."""
    if not info.software:
        return 256
    return min(max(8, 1 << (ceil_div(keys, LANE_KEYS) - 1).bit_length()), 256)
