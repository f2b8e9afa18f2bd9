"""Launchers of multi-head latent attention."""

from __future__ import annotations

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose


def lower_latent_append(op: Op, context: Context) -> list[Dispatch]:
    latent, cache = context.view(op.value(0)), op.cache(2)
    # WGSL has no optional binding: without a rotated key the latent stands in.
    rotated = latent if op.ins[1] is None else context.view(op.value(1))
    turned = 0 if op.ins[1] is None else rotated.columns
    (latents,) = context.store(cache).buffers
    at = context.layout.offset
    values: dict[str, float] = {
        "RANK": latent.columns,
        "TURNED": turned,
        "ROW_SLOT": at[f"{cache.group}.row_slot"],
        "VALID_ROWS": at["valid_rows"],
    } | places(latent=latent, rotated=rotated)
    access = ("read", "read", "read", "write")
    kernel = Kernel("latent_append", compose("latent_append"), access, constants(values))  # type: ignore[arg-type]
    buffers = (latent.buffer, rotated.buffer, context.step, latents)
    numbers = latent.rows * (latent.columns + turned)
    return [Dispatch(kernel, buffers, strided_grid(ceil_div(numbers, 64), context.info))]
