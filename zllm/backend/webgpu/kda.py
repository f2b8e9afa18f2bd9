"""Launchers of KDA: short convolution, decay, delta rule and gated norm."""

from __future__ import annotations

from zllm.attention.kda import DecaySpec, DeltaSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose

READ: tuple[Access, ...] = ("read",)
# kda_delta_group.wgsl: keys of a thread, threads and columns of a workgroup, most of a head.
KEYS, THREADS, WIDTH, MOST_SIZE = 16, 256, 32, 256
COLUMN_THREADS = 8  # kda_delta_columns.wgsl


def missing_delta(op: Op, info: DeviceInfo) -> str | None:
    spec: DeltaSpec = op.spec
    if spec.head_size > MOST_SIZE and not info.software:
        return f"head size {spec.head_size} is above {MOST_SIZE}"
    return None


def _offsets(context: Context, *names: str) -> dict[str, float]:
    """Where step words lie, as the constants of the same names."""
    return {name.upper(): context.layout.offset[name] for name in names}


def lower_conv(op: Op, context: Context) -> list[Dispatch]:
    x, taps = context.view(op.value(0)), context.banks(op.weight(1))[0]
    outs = [context.view(out) for out in op.outs]
    assert all(out.buffer is outs[0].buffer for out in outs), "results of one op lie side by side"
    (planes,) = context.store(op.cache(2)).buffers
    values: dict[str, float] = {
        "CHANNELS": x.columns,
        "TAPS": taps.columns,
        "W_STRIDE": taps.row_words,
    }
    values |= places(x=x, out=outs[0])
    values |= _offsets(context, "valid_rows", "seq", "position", "first_row", "last_row")
    values |= _offsets(context, "read_plane", "written_plane")
    access: tuple[Access, ...] = (*READ * 3, "write", "write")
    kernel = Kernel("kda_conv", compose("silu", "kda_conv"), access, constants(values))
    grid = (ceil_div(x.columns, 64), min(x.rows, context.info.max_grid), 1)
    buffers = (x.buffer, taps.buffer, context.step, planes, outs[0].buffer)
    return [Dispatch(kernel, buffers, grid)]


def lower_decay(op: Op, context: Context) -> list[Dispatch]:
    spec: DecaySpec = op.spec
    a, out = context.view(op.value(0)), context.view(op.outs[0])
    a_log, bias = (context.banks(op.weight(i))[0] for i in (1, 2))
    values: dict[str, float] = {
        "COLUMNS": a.columns,
        "ROWS": a.rows,
        "SIZE": spec.head_size,
        "BOUND": spec.lower_bound,
    } | places(a=a, out=out)
    access: tuple[Access, ...] = (*READ * 3, "write")
    kernel = Kernel("kda_decay", compose("silu", "kda_decay"), access, constants(values))
    grid = strided_grid(ceil_div(a.rows * a.columns, 64), context.info)
    return [Dispatch(kernel, (a.buffer, a_log.buffer, bias.buffer, out.buffer), grid)]


def lower_delta(op: Op, context: Context) -> list[Dispatch]:
    """A sequence's rows one after another in one dispatch, its value columns side by side."""
    spec: DeltaSpec = op.spec
    q, k, v, g, beta = (context.view(op.value(i)) for i in range(5))
    (planes,) = context.store(op.cache(5)).buffers
    out = context.view(op.outs[0])
    values: dict[str, float] = {
        "HEADS": spec.heads,
        "SIZE": spec.head_size,
        "SCALE": spec.head_size**-0.5,
    }
    values |= places(q=q, k=k, v=v, g=g, beta=beta, out=out)
    values |= _offsets(context, "valid_seqs", "position", "first_row", "last_row")
    values |= _offsets(context, "read_plane", "written_plane")
    shape, more, grid = _delta_shape(spec, context)
    wgsl = compose("silu", "kda_delta", shape)
    access: tuple[Access, ...] = (*READ * 6, "write", "write")
    kernel = Kernel(shape, wgsl, access, constants(values | more))
    read = (q.buffer, k.buffer, v.buffer, g.buffer, beta.buffer, context.step)
    return [Dispatch(kernel, (*read, planes, out.buffer), grid)]


def _delta_shape(
    spec: DeltaSpec, context: Context
) -> tuple[str, dict[str, float], tuple[int, int, int]]:
    """(source, own constants, grid) of the kernel that suits the device."""
    seqs = context.key.seqs
    if context.info.software:
        groups = ceil_div(spec.heads * spec.head_size, COLUMN_THREADS)
        return "kda_delta_columns", {"THREADS": COLUMN_THREADS}, (groups, seqs, 1)
    slices = ceil_div(spec.head_size, KEYS)
    width = min(WIDTH, THREADS // slices)
    more: dict[str, float] = {"THREADS": width * slices, "WIDTH": width, "SLICES": slices}
    return "kda_delta_group", more, (ceil_div(spec.head_size, width), spec.heads, seqs)


def lower_gated_norm(op: Op, context: Context) -> list[Dispatch]:
    x, gate = context.view(op.value(0)), context.view(op.value(1))
    w, out = context.banks(op.weight(2))[0], context.view(op.outs[0])
    info = context.info
    heads = x.columns // w.columns
    values: dict[str, float] = {
        "ROWS": x.rows,
        "HEADS": heads,
        "SIZE": w.columns,
        "EPS": op.spec.eps,
        "THREADS": max(info.subgroup_size, 4) if info.software else 128,
    } | places(x=x, gate=gate, out=out)
    wgsl = compose(reduction(info), "silu", "kda_gated_norm")
    access: tuple[Access, ...] = (*READ * 3, "write")
    kernel = Kernel("kda_gated_norm", wgsl, access, constants(values))
    buffers = (x.buffer, gate.buffer, w.buffer, out.buffer)
    return [Dispatch(kernel, buffers, strided_grid(x.rows * heads, info))]
