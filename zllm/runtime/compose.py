"""The one generic composition: binds a decoder, its tensors and a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zllm import rope
from zllm.backend.capability import Resources
from zllm.backend.contract import PACKED_USES, Backend, Cache, Group, Recording, Weight
from zllm.errors import BackendError, notice
from zllm.kv_cache.paged import PagePool
from zllm.kv_cache.spec import CacheSpec, StateSpec
from zllm.quant.nan_codes import refuse_nan
from zllm.rope import RopeSpec
from zllm.runtime.loop import Limits, Loop
from zllm.runtime.plans import PlanPool

if TYPE_CHECKING:
    from zllm.backend.selftest.compare import Outcome

PAGE_SLOTS = 16

# What a vector and a table of angles are read by.
VECTOR_USES = frozenset({"rms_norm", "bias"})
TABLE_USES = frozenset({"rope_append", "rope"})

# Planes of recurrent state per lane: committed, two in flight, two held (where the sequence was
# taken up, and at its prompt's end); the rest for finished sequences that wait for reuse.
PLANES_PER_LANE = 8

Decoder = Callable[[Any], None]  # records a round; the argument offers what the model needs

BACKENDS = ("oracle", "webgpu", "auto")
TRACED = "webgpu, traced"  # tells when each kernel ran; for benchmarks
RESIDENT = ("f32", "packed")  # of the oracle; a device keeps weights packed
KvDtype = Literal["f16", "f32"]
KV_DTYPES: tuple[KvDtype, ...] = ("f16", "f32")


@dataclass(frozen=True, slots=True)
class ArrayBytes:
    """A computed table as the bytes of a weight."""

    array: np.ndarray[Any, np.dtype[np.float32]]

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        data = np.ascontiguousarray(self.array).data.cast("B")
        end = self.size_bytes if size_bytes is None else offset_bytes + size_bytes
        return data[offset_bytes:end]


@dataclass(frozen=True, slots=True)
class Groups:
    full: Group  # of everything that is kept per token
    state: Group  # planes: a page of one slot per sequence and round


class ModelResources:
    """Loads what the decoder asks for into the backend, once."""

    def __init__(
        self,
        backend: Backend,
        tensors: Mapping[str, Any],
        dense: Callable[[tuple[int, ...], ArrayBytes], Any],
        groups: Groups,
        context: int,
        progress: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self._backend = backend
        self._tensors = tensors
        self._dense = dense
        self._groups = groups
        self._context = context
        self._progress = progress
        self._tables: dict[RopeSpec, Weight] = {}
        self.short_rope = 0  # of the tables: see Limits
        self.stateful = False  # whether the decoder asked for recurrent state

    def weight(
        self, *names: str, parts: tuple[int, ...] = (), read_by: str = "", together: int = 1
    ) -> Weight:
        stored = [self._tensors[name] for name in names]
        for name, part in zip(names, stored, strict=True):
            refuse_nan(name, part)
        uses = uses_of(stored[0].shape, read_by)
        name = names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"
        weight = self._backend.load(name, stored, uses=uses, together=together)
        self._progress(sum(part.size_bytes for part in stored))
        assert not parts or sum(parts) == weight.shape[0], (names, parts)
        return replace(weight, parts=parts) if parts else weight

    def rope_table(self, spec: RopeSpec, /) -> Weight:
        if spec.long_divisors:
            self.short_rope = spec.original_context
        if spec not in self._tables:
            halves = np.split(rope.table(spec, self._context), 2 if spec.long_divisors else 1)
            parts = [self._dense(half.shape, ArrayBytes(half)) for half in halves]
            name = f"rope_table.{len(self._tables)}"
            self._tables[spec] = self._backend.load(name, parts, uses=TABLE_USES)
        return self._tables[spec]

    def cache(self, name: str, spec: CacheSpec, /) -> Cache:
        stateful = isinstance(spec, StateSpec)
        self.stateful |= stateful
        group = self._groups.state if stateful else self._groups.full
        return self._backend.new_cache(name, spec, group=group)


def uses_of(shape: tuple[int, ...], read_by: str = "") -> frozenset[str]:
    """The ops that read a weight: `read_by` alone, or what reads any of its rank."""
    if read_by:
        return frozenset({read_by})
    return PACKED_USES if len(shape) == 2 else VECTOR_USES


def cache_groups(lanes: int, cache_tokens: int) -> Groups:
    """Where `cache_tokens` tokens and the recurrent state of `lanes` sequences are kept."""
    full = Group("full", PAGE_SLOTS, 1 + -(-cache_tokens // PAGE_SLOTS))
    return Groups(full, Group("state", 1, 1 + PLANES_PER_LANE * lanes))


def create_backend(
    name: str,
    *,
    lanes: int,
    resident: str = "f32",
    kv_dtype: KvDtype | None = None,
    reference_ops: Collection[str] = (),
    verdicts: Path | None = None,
) -> Backend:
    """`oracle`, `webgpu`, or `auto`: WebGPU where there is a GPU, else the oracle, with a notice.

    kv_dtype: of keys and values; None: f16 on WebGPU, f32 on the oracle, which has no other.
    reference_ops: ops that run on the oracle inside a WebGPU plan. verdicts: where it is kept which
    kernels are right; without it they are not checked. BackendError names what is missing and what
    to do.
    """
    if name == TRACED:
        from zllm.backend.webgpu.tracing import open_tracing_backend

        return open_tracing_backend(lanes=lanes, kv_dtype=kv_dtype, verdicts=verdicts)
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}: use one of {', '.join(BACKENDS)}")
    if resident not in RESIDENT:
        raise BackendError(f"unknown resident form {resident!r}: use one of {', '.join(RESIDENT)}")
    if kv_dtype not in (None, *KV_DTYPES):
        raise BackendError(f"unknown kv_dtype {kv_dtype!r}: use one of {', '.join(KV_DTYPES)}")
    _check_ops(reference_ops)
    if name != "oracle":
        try:
            return _open_webgpu(lanes, reference_ops, kv_dtype, verdicts, software=name == "webgpu")
        except BackendError as error:
            if name == "webgpu":
                raise
            notice(f"--backend auto runs on the oracle: {error}")
    from zllm.backend.oracle.backend import OracleBackend

    if kv_dtype == "f16" and name == "oracle":
        raise BackendError(
            "the oracle keeps keys and values as f32: leave --kv-dtype f16 out, "
            "or take --backend webgpu"
        )
    return OracleBackend(lanes=lanes, packed=resident == "packed")


def _open_webgpu(
    lanes: int,
    reference_ops: Collection[str],
    kv_dtype: KvDtype | None,
    verdicts: Path | None,
    *,
    software: bool,
) -> Backend:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.webgpu.backend import open_backend

    return open_backend(
        lanes=lanes,
        software=software,
        oracle=lambda lanes: OracleBackend(lanes=lanes, packed=True),
        verdicts=verdicts,
        reference_ops=reference_ops,
        kv_dtype=kv_dtype,
    )


async def renew_device() -> None:
    """After a loss, before a backend is opened again: in a page the browser is asked first."""
    from zllm.backend.webgpu.driver import renew

    await renew()


def _check_ops(names: Collection[str]) -> None:
    """BackendError names what is no op and lists those that exist."""
    from zllm.backend.oracle.ops import LOWER

    for name in names:
        if name not in LOWER:
            known = ", ".join(sorted(LOWER))
            raise BackendError(f"--reference-ops: no op is named {name!r}; there are: {known}")


async def kernel_checks(
    backend: Backend, recordings: Sequence[Recording]
) -> AsyncIterator[tuple[str, Outcome]]:
    """(what, outcome) of each kernel that the recordings use, held against the oracle.

    Nothing on a backend without kernels of its own: the oracle.
    """
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.selftest.case import LANES

    check: Any = getattr(backend, "self_check", None)
    if check is not None:
        async for what, outcome in check(recordings, OracleBackend(lanes=LANES, packed=True)):
            yield what, outcome


def create_decoder(architecture: str, config: Any, resources: Resources) -> Decoder:
    """`zllm.runtime.<architecture>.decoder`: it asks `resources` for all that it needs."""
    module = import_module(f"zllm.runtime.{architecture}.decoder")
    decoder: Decoder = module.Decoder(config, resources)
    return decoder


def build_loop(
    architecture: str,
    config: Any,
    backend: Backend,
    resources: Callable[[Groups], ModelResources],
    limits: Limits,
    *,
    cache_tokens: int,
) -> Loop:
    """The engine loop of one model: `zllm.runtime.<architecture>.decoder` on `backend`."""
    groups = cache_groups(limits.lanes, cache_tokens)
    bound = resources(groups)
    decoder = create_decoder(architecture, config, bound)
    limits = replace(limits, short_rope=bound.short_rope)
    planes = PagePool(groups.state.pages, 1) if bound.stateful else None
    return Loop(
        backend, PlanPool(backend, decoder, [groups.full]), groups.full, limits, planes=planes
    )
