"""The memory that a model needs, from a survey of it: arithmetic, nothing is allocated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from zllm.backend.contract import Op, Value
from zllm.kv_cache.spec import CacheSpec, KvSpec, StateSpec, values_per_token
from zllm.rope import RopeSpec
from zllm.runtime.compose import PAGE_SLOTS, PLANES_PER_LANE
from zllm.runtime.survey import F32_BYTES, Survey

PREFILL_ROWS = 512  # of one prefill round on the oracle; devices take as many or fewer


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes for `sequences` sequences of `context` tokens each."""

    sequences: int
    context: int
    weights_packed: int  # matrices as stored, vectors f32
    weights_f32: int
    tables: int  # of rotary angles
    caches: dict[str, int]  # by what is kept; "state" is held per sequence, all else per token
    kv_f16: int  # of "kv" where f16 is used, as on WebGPU; the rest is f32
    activations: int  # results of operations; what an operation needs inside is not counted


def footprint(model: Survey, *, sequences: int, context: int) -> Footprint:
    held = model.inventory
    vectors = {name for name, weight in held.weights.items() if len(weight.shape) == 1}
    elements = {name: math.prod(weight.shape) for name, weight in held.weights.items()}
    caches: dict[str, int] = defaultdict(int)
    kv_f16 = 0
    for spec in held.caches.values():
        size_bytes = _cache_bytes(spec, sequences, context)
        caches[cache_kind(spec)] += size_bytes
        if isinstance(spec, KvSpec):
            kv_f16 += size_bytes // (2 if spec.halved else 1)
    rows = min(PREFILL_ROWS, context)
    return Footprint(
        sequences=sequences,
        context=context,
        weights_packed=sum(
            F32_BYTES * elements[name] if name in vectors else size_bytes
            for name, size_bytes in held.stored_bytes.items()
        ),
        weights_f32=F32_BYTES * sum(elements.values()),
        tables=sum(table_bytes(spec, context) for spec in held.tables),
        caches=dict(caches),
        kv_f16=kv_f16,
        activations=max(
            live_bytes(model.ops(rows, 1)), live_bytes(model.ops(sequences, sequences))
        ),
    )


def table_bytes(spec: RopeSpec, context: int) -> int:
    return F32_BYTES * spec.rotated * context * (2 if spec.long_divisors else 1)


def cache_kind(spec: CacheSpec) -> str:
    """`kv`, `latent`, `index`, `state`, …: the name of its spec."""
    return type(spec).__name__.removesuffix("Spec").lower()


def _cache_bytes(spec: CacheSpec, sequences: int, context: int) -> int:
    """As the composition lays caches out: whole pages, planes, and one of each for scratch."""
    if isinstance(spec, StateSpec):
        return F32_BYTES * math.prod(spec.shape) * (1 + PLANES_PER_LANE * sequences)
    pages = 1 + sequences * -(-context // PAGE_SLOTS)
    return F32_BYTES * values_per_token(spec) * pages * PAGE_SLOTS


def live_bytes(ops: Sequence[Op]) -> int:
    """The most that results take together, each from the op that makes it to its last reader."""
    last_use: dict[int, int] = {}
    for at, op in enumerate(ops):
        for value in (*op.ins, *op.outs):
            if isinstance(value, Value):
                last_use[value.id] = at
    dying: dict[int, int] = defaultdict(int)  # bytes by the op that reads them last
    live = peak = 0
    for at, op in enumerate(ops):
        for value in op.outs:
            live += F32_BYTES * math.prod(value.shape)
            dying[last_use[value.id]] += F32_BYTES * math.prod(value.shape)
        peak = max(peak, live)
        live -= dying[at]
    return peak
