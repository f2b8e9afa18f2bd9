"""What a device will hold for a model, weighed against what it has before anything is uploaded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zllm.backend.contract import Group, Op
from zllm.errors import BackendError
from zllm.kv_cache.spec import CacheSpec, StateSpec
from zllm.runtime.compose import PAGE_SLOTS, KvDtype, cache_groups
from zllm.runtime.footprint import live_bytes, table_bytes
from zllm.runtime.survey import F32_BYTES, Survey

if TYPE_CHECKING:
    from zllm.weight.linear_weight import LinearWeight

# Pooled buffers are larger than the values they serve (1.3 times, measured on SmolLM2), and
# attention's splits leave sums there.
POOL_SLACK = 2
LEAST_CONTEXT = 256  # a default context is cut no further


@runtime_checkable
class Budgeted(Protocol):
    """A backend that knows what it would hold."""

    prefill_rows: int

    def free_bytes(self) -> int | None:
        """Memory that it may take; None: it cannot know."""
        ...

    def load_bytes(self, parts: Sequence[LinearWeight], /, *, uses: frozenset[str]) -> int:
        """Of `load`."""
        ...

    def cache_bytes(self, spec: CacheSpec, /, *, group: Group) -> int:
        """Of `new_cache`."""
        ...

    def scratch_bytes(self, op: Op, /) -> int:
        """Of the rounds of an op, beside its results."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by what holds them."""

    weights: int  # as resident, tables of rotary angles included
    cache: int  # of tokens
    state: int  # planes
    activations: int  # pooled, carried from round to round, or staged while loading

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.state + self.activations


class Needs:
    """The parts that do not depend on the context are measured once."""

    def __init__(self, model: Survey, backend: Budgeted, *, lanes: int, vocabulary: int) -> None:
        self._model = model
        self._backend = backend
        self._lanes = lanes
        held = model.inventory.loads.values()
        sizes = [backend.load_bytes(load.parts, uses=load.uses) for load in held]
        self._weights = sum(sizes)
        rounds = model.ops(backend.prefill_rows, 1), model.ops(lanes, lanes)
        live = max(map(live_bytes, rounds))
        scratch = max(backend.scratch_bytes(op) for ops in rounds for op in ops)
        carried = 2 * F32_BYTES * (lanes + 1) * vocabulary
        # A matrix is staged as stored while it is repacked, before any round needs the pool.
        self._activations = max(POOL_SLACK * live + scratch + carried, max(sizes, default=0))

    def at(self, context: int, cache_tokens: int) -> MemoryPlan:
        groups = cache_groups(self._lanes, cache_tokens)
        cache = state = 0
        for spec in self._model.inventory.caches.values():
            if isinstance(spec, StateSpec):
                state += self._backend.cache_bytes(spec, group=groups.state)
            else:
                cache += self._backend.cache_bytes(spec, group=groups.full)
        tables = sum(table_bytes(spec, context) for spec in self._model.inventory.tables)
        return MemoryPlan(self._weights + tables, cache, state, self._activations)


class Wanted(Protocol):
    """What an engine was asked for, or would like: a default may be cut."""

    @property
    def context(self) -> int: ...

    @property
    def cache_tokens(self) -> int: ...

    @property
    def context_given(self) -> bool: ...

    @property
    def cache_given(self) -> bool: ...

    @property
    def kv_dtype(self) -> KvDtype | None: ...


def fit(needs: Needs, wanted: Wanted, free: int, *, whose: str) -> tuple[int, int]:
    """The context and the cached tokens that fit in `free` bytes: as wanted, if they do.

    `whose`: where the memory is, or who said how much, for the BackendError that names the parts
    and what to do if what was asked for does not fit.
    """

    def fits(context: int, tokens: int) -> bool:
        return needs.at(context, tokens).total <= free

    context, tokens = wanted.context, wanted.cache_tokens
    if fits(context, tokens):
        return context, tokens
    if not wanted.cache_given:
        fewer = _most(context, tokens, lambda size: fits(context, size))
        if fewer is not None:
            return context, fewer
        tokens = context
    least = min(LEAST_CONTEXT, context)
    most = _most(least, context, lambda size: fits(size, min(tokens, size)))
    if most is not None and not (wanted.context_given or wanted.cache_given):
        return most, most
    raise BackendError(_refusal(needs.at(context, tokens), wanted, free, whose, most))


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest size from `low` to `high`, in whole pages, that fits; None if not even `low`."""
    if not fits(low):
        return None
    pages = (high - low) // PAGE_SLOTS
    return low + PAGE_SLOTS * (
        bisect_left(range(pages + 1), True, key=lambda n: not fits(low + PAGE_SLOTS * n)) - 1
    )


def _refusal(plan: MemoryPlan, wanted: Wanted, free: int, whose: str, most: int | None) -> str:
    parts = {
        "weights": plan.weights,
        f"the cache of {wanted.context} tokens": plan.cache,
        "recurrent state": plan.state,
        "activations": plan.activations,
    }
    held = ", ".join(f"{name} {mib(size)}" for name, size in parts.items() if size)
    if most is not None:
        advice = [f"--context {most} fits"]
    elif plan.state > plan.total - free:
        advice = ["run fewer sequences at once"]
    else:
        advice = ["take a file with fewer bits a weight"]
    if wanted.kv_dtype == "f32" and plan.cache:
        advice.append("--kv-dtype f16 halves keys and values")
    needed = f"{mib(plan.total)} are needed and {whose} {mib(free)}"
    return f"{needed}: {held}; {', or '.join(advice)}"


def mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
