"""Launchers of KDA: short convolution, decay, delta rule and gated norm."""

from __future__ import annotations

from zllm.attention.kda import DecaySpec, DeltaSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll

READ: tuple[Access, ...] = ("read",)
# kda_delta_group.wgsl: keys of a thread, threads and columns of a workgroup, most of a head.
KEYS, THREADS, WIDTH, MOST_SIZE = 16, 256, 32, 256
COLUMN_THREADS = 8  # kda_delta_columns.wgsl
CONV_ROWS = 8  # of a thread of kda_conv.wgsl in a prefill
# kda_chunk.wgsl, kda_scan.wgsl: tokens at a time, largest head, workgroups that fill a GPU.
CHUNK, MOST_CHUNKED, FULL = 16, 128, 200


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
        "W_STRIDE": taps.row_words,
    }
    values |= places(x=x, out=outs[0])
    values |= _offsets(context, "valid_rows", "seq", "position", "first_row", "last_row")
    values |= _offsets(context, "read_plane", "written_plane")
    access: tuple[Access, ...] = (*READ * 3, "write", "write")
    written_out = {"TAPS": taps.columns, "KEPT": taps.columns - 1}
    written_out["RUN"] = CONV_ROWS if x.rows >= 2 * context.key.seqs else 1
    sizes = "".join(f"const {name} = {size}u;\n" for name, size in written_out.items())
    wgsl = sizes + unroll(compose("silu", "kda_conv"), written_out)
    kernel = Kernel("kda_conv", wgsl, access, constants(values))
    runs = ceil_div(x.rows, written_out["RUN"])
    grid = (ceil_div(x.columns, 64), min(runs, context.info.max_grid), 1)
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
    """A sequence's rows one after another in one dispatch, its value columns side by side.

    GPUs take many rows in chunks.
    """
    spec: DeltaSpec = op.spec
    if chunks(spec, context):
        return _chunked(op, context)
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
    wgsl = unroll(compose("silu", "kda_inputs", "kda_delta", shape), {})
    access: tuple[Access, ...] = (*READ * 6, "write", "write")
    kernel = Kernel(shape, wgsl, access, constants(values | more))
    read = (q.buffer, k.buffer, v.buffer, g.buffer, beta.buffer, context.step)
    return [Dispatch(kernel, (*read, planes, out.buffer), grid)]


def chunks(spec: DeltaSpec, context: Context) -> bool:
    """Whether a plan's sequences may be long enough for chunks to pay."""
    key = context.key
    many = key.rows >= max(CHUNK, 2 * key.seqs)
    return many and spec.head_size <= MOST_CHUNKED and not context.info.software


def _chunked(op: Op, context: Context) -> list[Dispatch]:
    """Two dispatches: what chunks have without the state, then the state through them."""
    spec: DeltaSpec = op.spec
    q, k, v, g, beta = (context.view(op.value(i)) for i in range(5))
    (planes,) = context.store(op.cache(5)).buffers
    out, size, seqs = context.view(op.outs[0]), spec.head_size, context.key.seqs
    slots, padded = context.key.rows // CHUNK + seqs, 32 * ceil_div(size, 32)
    head_bytes = 16 * slots * (16 * padded + padded // 4)
    heads = min(spec.heads, context.info.max_binding_bytes // head_bytes)
    parts = context.scratch(heads * head_bytes)
    values: dict[str, float] = {"SIZE": size, "PADDED": padded} | places(out=out)
    values |= _offsets(context, "valid_seqs", "first_row", "last_row")
    read = places(q=q, k=k, v=v, g=g, beta=beta) | {"SCALE": size**-0.5}
    width = 32 if spec.heads * seqs * ceil_div(size, 32) >= FULL else 16
    scanned = _offsets(context, "position", "read_plane", "written_plane")
    scanned |= {"HEADS": spec.heads, "WIDTH": width, "THREADS": 8 * width}
    access: tuple[Access, ...] = (*READ * 6, "write", "write")
    first_wgsl = unroll(compose("silu", "kda_inputs", "kda_chunks", "kda_chunk"), {})
    then_wgsl = unroll(compose("kda_chunks", "kda_scan"), {})
    inputs = (q.buffer, k.buffer, v.buffer, g.buffer, beta.buffer, context.step)
    dispatches = []
    for head in range(0, spec.heads, heads):
        at = values | {"FIRST_HEAD": head}
        count = min(heads, spec.heads - head)
        first = Kernel("kda_chunk", first_wgsl, access, constants(at | read))
        then = Kernel("kda_scan", then_wgsl, (*READ * 2, "write", "write"), constants(at | scanned))
        grid = (ceil_div(size, width), count, seqs)
        dispatches += [
            Dispatch(first, (*inputs, parts, out.buffer), (slots, count, 1)),
            Dispatch(then, (parts, context.step, planes, out.buffer), grid),
        ]
    return dispatches


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
