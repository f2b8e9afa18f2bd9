"""From a model to a loop that runs it: backend opened, weights loaded, the first plan made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zllm.backend.contract import Backend, PlanKey
from zllm.errors import BackendError, notice
from zllm.fetch.store import cache_dir
from zllm.model import Model
from zllm.runtime.compose import KvDtype, ModelResources, build_loop, create_backend
from zllm.runtime.loop import Limits, Loop
from zllm.runtime.memory_plan import Budgeted, Needs, fit, mib
from zllm.runtime.survey import survey
from zllm.weight.linear_weight import F32

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine was asked to run; the same again after its device was lost."""

    backend: str
    context: int
    cache_tokens: int
    lanes: int
    resident: str
    kv_dtype: KvDtype | None = None  # None: as the backend prefers
    reference_ops: tuple[str, ...] = ()
    device_memory: int | None = None  # bytes that a device may take
    context_given: bool = True  # False: a default, which may be cut
    cache_given: bool = True

    @property
    def on_oracle(self) -> Setup:
        return replace(self, backend="oracle", kv_dtype=None)


def open_loop(model: Model, setup: Setup, progress: Progress | None = None) -> Loop:
    """The loop and, with it, its backend. With `auto` a device that fails gives way to the oracle.

    LoadError, BackendError.
    """
    backend = create_backend(
        setup.backend,
        lanes=setup.lanes,
        resident=setup.resident,
        kv_dtype=setup.kv_dtype,
        reference_ops=setup.reference_ops,
        verdicts=cache_dir() / "kernels.json",
    )
    try:
        loop = _build(model, _fitted(model, setup, backend), backend, progress)
        if backend.keeps_prefill:  # plans are dear here: let what fails fail now
            loop.plans.get(PlanKey(1, 1, 1, "token"))
        return loop
    except BackendError as error:
        backend.close()
        if setup.backend != "auto" or backend.name == "oracle":
            raise
        notice(f"--backend auto runs on the oracle: {error}")
    except BaseException:
        backend.close()
        raise
    return open_loop(model, setup.on_oracle, progress)


def _fitted(model: Model, setup: Setup, backend: Backend) -> Setup:
    """With less context or cache than is usual where memory is known to be short."""
    if not isinstance(backend, Budgeted):
        if setup.device_memory is not None and setup.backend == "oracle":
            raise BackendError("--device-memory bounds a WebGPU device: leave it out of the oracle")
        return setup
    free, whose = setup.device_memory, "--device-memory allows"
    if free is None:
        free, whose = backend.free_bytes(), "free on this machine are"
    if free is None:
        return setup
    file = model.checkpoint
    layers = survey(file.architecture, file.config, file.tensors)
    needs = Needs(layers, backend, lanes=setup.lanes, vocabulary=model.vocabulary)
    context, tokens = fit(needs, setup, free, whose=whose)
    if context < setup.context:
        notice(f"context {context} instead of {setup.context}: {whose} {mib(free)}")
    return replace(setup, context=context, cache_tokens=tokens)


def _build(model: Model, setup: Setup, backend: Backend, progress: Progress | None) -> Loop:
    checkpoint = model.checkpoint
    loaded, total = 0, checkpoint.size_bytes

    def count(size_bytes: int) -> None:
        nonlocal loaded
        loaded += size_bytes
        if progress is not None:
            progress(loaded, total)

    return build_loop(
        checkpoint.architecture,
        checkpoint.config,
        backend,
        lambda groups: ModelResources(
            backend, checkpoint.tensors, F32, groups, setup.context, count
        ),
        Limits(setup.context, setup.lanes, model.vocabulary),
        cache_tokens=setup.cache_tokens,
    )
