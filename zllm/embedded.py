"""The engine inside a process: structured JSON in and out, the same semantics as the server."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from zllm.answer import Choice, Json
from zllm.backend.contract import Backend, PlanKey
from zllm.backend.drive import drive, unyielding
from zllm.errors import BackendError, DeviceLost, RequestError, notice
from zllm.job import Job
from zllm.model import Model
from zllm.opening import Setup, open_loop
from zllm.request import parse_request
from zllm.runtime.compose import KvDtype, kernel_checks, renew_device
from zllm.runtime.forced import forced_logits
from zllm.runtime.loop import Loop

if TYPE_CHECKING:
    from zllm.backend.selftest.compare import Outcome

DEFAULT_CONTEXT = 4096  # tokens, where the model allows more
DEFAULT_LANES = 16

T = TypeVar("T")


class Engine:
    """A loaded model. Safe to use from several threads; requests share rounds.

    model: a GGUF file, a Hugging Face folder, a name `zllm pull` knows, or `hf:owner/repo/file`; or
    a Model, which the engine then closes.
    context: most tokens of a sequence. cache_tokens: tokens cached for all sequences together.
    lanes: most sequences that run at once. resident: "f32", or "packed" for less memory (oracle).
    kv_dtype: of keys and values on a device: "f16" (default), or "f32".
    reference_ops: ops that run on the oracle inside a WebGPU plan, while a kernel is under repair.
    device_memory: bytes that a WebGPU device may take; where nobody says, a software adapter takes
    what the machine has free. Too little is refused before anything is loaded.
    fallback: the oracle takes over from a lost device that does not come back, as with `auto`.
    progress: called with (bytes loaded, bytes in all). Errors: LoadError, BackendError.
    """

    def __init__(
        self,
        *,
        model: str | Path | Model,
        backend: str = "auto",
        context: int | None = None,
        cache_tokens: int | None = None,
        lanes: int = DEFAULT_LANES,
        resident: str = "f32",
        kv_dtype: KvDtype | None = None,
        reference_ops: Collection[str] = (),
        device_memory: int | None = None,
        fallback: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        _check_count("lanes", lanes)
        _check_count("cache_tokens", cache_tokens)
        with ExitStack() as undo:
            self.model = model if isinstance(model, Model) else Model(model)
            undo.callback(self.model.checkpoint.close)
            size = _context(context, self.model.context)
            self._setup = Setup(
                backend,
                size,
                cache_tokens or max(2 * size, DEFAULT_CONTEXT),
                lanes,
                resident,
                kv_dtype,
                tuple(reference_ops),
                device_memory,
                context_given=context is not None,
                cache_given=cache_tokens is not None,
            )
            self._loop = open_loop(self.model, self._setup, progress)
            undo.pop_all()
        self._falls_back = fallback or backend == "auto"
        self._lost = False  # the device, and it could not be opened again
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()  # held during a round
        self._changes: deque[Callable[[], None]] = deque()  # to make between two rounds
        self._closed = False

    @property
    def context(self) -> int:
        """Most tokens of a sequence: less than the default where memory is short."""
        return self._loop.limits.context

    @property
    def backend(self) -> Backend:
        """Where it runs now: after a loss it may be another."""
        return self._loop.backend

    # Requests

    @property
    def requests(self) -> list[str]:
        """The ids of requests that run, the newest last."""
        return list(self._jobs)

    def generate(self, request: Mapping[str, Any]) -> Json:
        """One answer, OpenAI-shaped. RequestError names a bad field; GenerationError: it failed."""
        return self.generate_many([request])[0]

    def generate_many(self, requests: Sequence[Mapping[str, Any]]) -> list[Json]:
        """Answers to several requests that share rounds. All are checked before any starts."""
        jobs = self._start(requests)
        try:
            while not all(job.done for job in jobs):
                self._step()
            return [job.answer() for job in jobs]
        finally:
            self._drop(jobs)

    def stream(self, request: Mapping[str, Any]) -> Iterator[Json]:
        """Chunks of one answer as they come; closing the iterator cancels it."""
        chunks = self._chunks(self._start([request])[0])
        next(chunks)  # into its `try`: closed unread, it cancels as well
        return chunks

    async def agenerate(self, request: Mapping[str, Any]) -> Json:
        return (await self.agenerate_many([request]))[0]

    async def agenerate_many(self, requests: Sequence[Mapping[str, Any]]) -> list[Json]:
        jobs = self._start(requests)
        try:
            while not all(job.done for job in jobs):
                await self._astep()
            return [job.answer() for job in jobs]
        finally:
            self._drop(jobs)

    def astream(self, request: Mapping[str, Any]) -> AsyncIterator[Json]:
        chunks = self._achunks(self._start([request])[0])
        unyielding(chunks.__anext__())
        return chunks

    def cancel(self, id: str) -> bool:
        """End a request by the `id` of its chunks; False if it is not running. Never waits."""
        job = self._jobs.get(id)
        if job is None or job.done:
            return False
        self._change(lambda: self._cancel(job))
        return True

    def logits(
        self, batch: Sequence[Sequence[int]], split: Sequence[int] | None = None
    ) -> list[NDArray[np.float32]]:
        """Teacher-forced logits [T, V] of each sequence, fed in rounds of the lengths `split`."""
        for tokens in batch:
            parse_request({"tokens": list(tokens)}, vocabulary=self.model.vocabulary)
        with self._lock:
            self._check_open()
            lengths = split or [max((len(tokens) for tokens in batch), default=0)]
            try:
                return drive(forced_logits(self._loop, batch, lengths))
            except DeviceLost as lost:
                drive(self._recover(lost))
                self._check_open()
                return drive(forced_logits(self._loop, batch, lengths))

    async def settle_kernels(self) -> None:
        """In a page, where making a plan cannot wait: check the kernels in use, once per adapter.

        Plans with a wrong one are made anew, of other kernels or with the reference.
        """
        self._check_open()
        settle: Any = getattr(self.backend, "settle", None)
        if settle is None:
            return
        while True:
            for rows in (1, 2, self.backend.prefill_rows):
                self._loop.plans.get(PlanKey(rows, 1, rows, "token"))
            if not await settle():
                return
            self._loop.plans.forget()

    def prepare(self, rows: int) -> None:
        """Make the plan of a prompt of so many tokens, in a page its shaders, before one is put."""
        self._check_open()
        if self.backend.keeps_prefill:
            rows = min(rows, self.backend.prefill_rows)
            self._loop.plans.get(PlanKey(rows, 1, rows, "token"))

    async def check_kernels(self) -> AsyncIterator[tuple[str, Outcome]]:
        """(what, outcome) of each kernel that decode and prefill use, held against the oracle."""
        self._check_open()
        loop = self._loop
        keys = (PlanKey(1, 1, 1, "token"), PlanKey(2, 1, 2, "token"))
        recordings = [loop.plans.record(loop.backend.bucket(key)) for key in keys]
        async for what, outcome in kernel_checks(loop.backend, recordings):
            yield what, outcome

    async def profile(self) -> list[tuple[str, float]]:
        """(op, seconds) of a decode round; empty where the backend cannot tell."""
        self._check_open()
        loop = self._loop
        measure: Any = getattr(loop.backend, "profile", None)
        if measure is None:
            return []
        position = max((len(s.tokens) for s in loop.running), default=128)
        position = min(position, self.context - 1)
        plan = loop.plans.get(PlanKey(1, 1, position + 1, "token"))
        shares: list[tuple[str, float]] = await measure(plan, position)
        return shares

    def close(self) -> None:
        """Free the model; running requests end as cancelled. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._end_all()
            self.backend.close()
            self.model.checkpoint.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The loop

    def _start(self, bodies: Sequence[Mapping[str, Any]]) -> list[Job]:
        self._check_open()
        checked: list[Job] = []
        for at, body in enumerate(bodies):
            try:
                request = parse_request(body, vocabulary=self.model.vocabulary)
                tokenizer = self.model.tokenizer_for(request)
                job = Job(request, self.model.prompt_ids(request), self.model.name, tokenizer)
                self._loop.check(job.prompt)
            except RequestError as error:
                where = f"requests[{at}]: " if len(bodies) > 1 else ""
                raise RequestError(f"{where}{error}") from None
            checked.append(job)
        for job in checked:
            self._jobs[job.id] = job
            self._change(partial(self._add, job))
        return checked

    def _add(self, job: Job) -> None:
        first = None
        for index in range(job.request.n):
            generation = self.model.generation(
                job.request, job.prompt, index, max_tokens=self.context
            )
            sequence = self._loop.add(generation, after=first)
            first = first or sequence
            job.choices.append(Choice(index, sequence, job.request, job.tokenizer))

    def _cancel(self, job: Job) -> None:
        for choice in job.choices:
            self._loop.cancel(choice.sequence)
            choice.pump()

    async def _round(self) -> None:
        self._make_changes()
        try:
            await self._loop.step()
        except DeviceLost as lost:
            await self._recover(lost)
        for job in list(self._jobs.values()):
            for choice in job.choices:
                if choice.finish is None and choice.pump():
                    self._loop.cancel(choice.sequence, "stop")

    async def _recover(self, lost: DeviceLost) -> None:
        """Open the device anew: requests go on from their token ids. One that loses it twice ends.

        Where the engine falls back, the oracle takes over then, and where no device is left.
        """
        old = self._loop
        old.backend.close()
        running = [job for job in self._jobs.values() if not job.done]
        for job in running:
            job.losses += 1
        twice = [job for job in running if job.losses > 1]
        try:
            self._loop = await self._reopened(oracle=bool(twice) and self._falls_back)
        except BackendError as error:
            self._lost = True
            self._fail(running, f"{lost}, and it cannot be opened again: {error}")
            return
        if twice and not self._falls_back:
            self._fail(twice, f"{lost} twice in one request; check the driver, or take the oracle")
        self._loop.take_over(old)
        notice(f"{lost}: opened anew on {self.backend.name}, running requests go on")

    async def _reopened(self, *, oracle: bool) -> Loop:
        if not oracle:
            try:
                await renew_device()
                return open_loop(self.model, self._setup)
            except BackendError:
                if not self._falls_back:
                    raise
        return open_loop(self.model, self._setup.on_oracle)

    def _fail(self, jobs: Sequence[Job], error: str) -> None:
        for job in jobs:
            for choice in job.choices:
                choice.sequence.fail(error)

    def _step(self) -> None:
        with self._lock:
            if self._closed:  # since the job at hand was started
                self._end_all()
            else:
                drive(self._round())
        self._settle()

    def _end_all(self) -> None:
        self._make_changes()
        for job in list(self._jobs.values()):
            self._cancel(job)

    def _change(self, change: Callable[[], None]) -> None:
        """Change who runs between two rounds: now, or once the running round ends. Never waits."""
        self._changes.append(change)
        self._settle()

    def _settle(self) -> None:
        while self._changes and self._lock.acquire(blocking=False):
            try:
                self._make_changes()
            finally:
                self._lock.release()

    def _make_changes(self) -> None:
        while self._changes:
            self._changes.popleft()()

    async def _astep(self) -> None:
        """Natively a round runs in a thread, so that the caller's event loop goes on."""
        if sys.platform != "emscripten":
            await asyncio.to_thread(self._step)
            return
        async with self._async_lock:
            await self._round()
        if not self.backend.keeps_prefill:  # NumPy never waits: let others have their turn
            await asyncio.sleep(0)

    @cached_property
    def _async_lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed")
        if self._lost:
            self._loop = open_loop(self.model, self._setup)
            self._lost = False

    # Answers

    def _chunks(self, job: Job) -> Iterator[Json]:
        try:
            yield {}
            yield from job.opening()
            while True:
                done = job.done
                yield from job.take()
                if done:
                    break
                self._step()
            yield from job.closing()
        finally:
            self._drop([job])

    async def _achunks(self, job: Job) -> AsyncGenerator[Json, None]:
        try:
            yield {}
            for chunk in job.opening():
                yield chunk
            while True:
                done = job.done
                for chunk in job.take():
                    yield chunk
                if done:
                    break
                await self._astep()
            for chunk in job.closing():
                yield chunk
        finally:
            self._drop([job])

    def _drop(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._jobs.pop(job.id, None)
            self._change(partial(self._cancel, job))


def _check_count(name: str, count: int | None) -> None:
    if count is not None and count < 1:
        raise RequestError(f"{name} must be at least 1, got {count}")


def _context(wanted: int | None, model: int) -> int:
    if wanted is None:
        return min(model, DEFAULT_CONTEXT)
    if not 2 <= wanted <= model:
        raise RequestError(f"context must be from 2 to the model's {model}, got {wanted}")
    return wanted
