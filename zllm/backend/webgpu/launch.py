"""From an op to its dispatches on WebGPU: the table of launchers, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zllm.backend.contract import Op, Value
from zllm.backend.webgpu import (
    attention,
    compressed,
    elementwise,
    experts,
    grouped,
    hyper,
    indexer,
    kda,
    latent,
    moe,
    product,
    rotary,
    sampler,
    wgsl_format,
)
from zllm.backend.webgpu.device import DeviceInfo, Dispatch
from zllm.backend.webgpu.lowering import Context, ResidentForm
from zllm.backend.webgpu.product import NormedSpec

Lower = Callable[[Op, Context], list[Dispatch]]
Missing = Callable[[Op, DeviceInfo], str | None]

LOWER: dict[str, Lower] = {
    "embed": elementwise.lower_embed,
    "rms_norm": elementwise.lower_rms_norm,
    "layer_norm": elementwise.lower_layer_norm,
    "linear": product.lower_linear,
    "norm_linear": product.lower_norm_linear,
    "gated_linear": product.lower_gated_linear,
    "norm_gated_linear": product.lower_norm_gated_linear,
    "gated": elementwise.lower_gated,
    "add": elementwise.lower_add,
    "soft_cap": elementwise.lower_soft_cap,
    "rope": rotary.lower_rope,
    "rope_append": rotary.lower_rope_append,
    "attend": attention.lower_attend,
    "latent_append": latent.lower_latent_append,
    "attend_latent": latent.lower_attend_latent,
    "index_append": indexer.lower_index_append,
    "select": indexer.lower_select,
    "unit_norm": compressed.lower_unit_norm,
    "compress_append": compressed.lower_compress_append,
    "select_entries": compressed.lower_select_entries,
    "attend_compressed": compressed.lower_attend_compressed,
    "grouped_linear": grouped.lower_grouped_linear,
    "conv": kda.lower_conv,
    "decay": kda.lower_decay,
    "delta": kda.lower_delta,
    "gated_norm": kda.lower_gated_norm,
    "hc_start": hyper.lower_hc_start,
    "hc_split": hyper.lower_hc_split,
    "hc_join": hyper.lower_hc_join,
    "hc_mean": hyper.lower_hc_mean,
    "hc_head": hyper.lower_hc_head,
    "last_rows": elementwise.lower_last_rows,
    "route": moe.lower_route,
    "route_by_token": moe.lower_route_by_token,
    "experts": experts.lower_experts,
    "sample": sampler.lower_sample,
    "logits": elementwise.lower_logits,
}
MISSING: dict[str, Missing] = {
    "rope": rotary.missing_rope,
    "rope_append": rotary.missing_rope_append,
    "attend": attention.missing_attend,
    "attend_latent": latent.missing_attend_latent,
    "select": indexer.missing_select,
    "compress_append": compressed.missing_compress_append,
    "select_entries": compressed.missing_select_entries,
    "attend_compressed": compressed.missing_attend_compressed,
    "delta": kda.missing_delta,
    "hc_split": hyper.missing_hyper,
    "hc_head": hyper.missing_hyper,
    "route": moe.missing_route,
    "route_by_token": moe.missing_route,
    "sample": sampler.missing_sample,
}


def lower(op: Op, context: Context) -> list[Dispatch]:
    """The dispatches of an op that `missing` does not refuse."""
    return [replace(dispatch, op=op) for dispatch in LOWER[op.name](op, context)]


def missing(op: Op, info: DeviceInfo) -> str | None:
    """None if the op runs on the device, else the reason."""
    if op.name not in LOWER:
        return "there is no WGSL kernel for it"
    activation = getattr(op.spec, "activation", "silu")
    if activation not in elementwise.ACTIVATIONS:
        return f"no WGSL for the activation {activation!r}"
    refuse = MISSING.get(op.name)
    return None if refuse is None else refuse(op, info)


def resident(format: str, columns: int, info: DeviceInfo) -> ResidentForm:
    """How rows of a stored matrix lie on the device; KeyError if no kernel decodes the format."""
    return wgsl_format.resident(format, columns)


def fuse(ops: Sequence[Op], info: DeviceInfo) -> tuple[Op, ...]:
    """Fold each rms_norm into the products that read it; not on software adapters.

    x·w/rms is linear in x, so the product's own pass over x yields the root mean square as well.
    Every workgroup repeats that sum: on a GPU it hides behind the weights, on a CPU it costs a
    quarter of the product (measured on lavapipe), five times what a dispatch saves.
    """
    if info.software:
        return tuple(ops)
    readers: dict[int, list[Op]] = {}
    for op in ops:
        for value in op.ins:
            if isinstance(value, Value):
                readers.setdefault(value.id, []).append(op)
    norms = {
        op.outs[0].id: op
        for op in ops
        if _whole(op) and all(_foldable(op, r) for r in readers[op.outs[0].id])
    }
    kept = (op for op in ops if not (op.outs and op.outs[0].id in norms))
    return tuple(_fold(norms[op.value(0).id], op) if _reads(op, norms) else op for op in kept)


def _whole(op: Op) -> bool:
    """A norm of whole rows."""
    return op.name == "rms_norm" and op.weight(1).shape == op.outs[0].shape[1:]


def _foldable(norm: Op, reader: Op) -> bool:
    return reader.name in ("linear", "gated_linear") and norm.outs[0] not in reader.ins[1:]


def _reads(op: Op, norms: dict[int, Op]) -> bool:
    x = op.ins[0] if op.ins else None
    return op.name in ("linear", "gated_linear") and isinstance(x, Value) and x.id in norms


def _fold(norm: Op, op: Op) -> Op:
    x, w = norm.ins
    return Op(f"norm_{op.name}", (x, w, *op.ins[1:]), op.outs, NormedSpec(norm.spec, op.spec))
