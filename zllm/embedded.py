"""The engine inside a process: structured JSON in and out, the same semantics as the server."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from zllm import hub
from zllm.answer import Choice, Delta, Json, chunk_choice, usage, whole_choice
from zllm.errors import GenerationError, LoadError, RequestError, ZllmError
from zllm.request import GREEDY_TEMPERATURE, Request, parse_request
from zllm.runtime.compose import ModelResources, build_loop, create_backend
from zllm.runtime.forced import forced_logits
from zllm.runtime.generation import Generation
from zllm.runtime.loop import Limits, Loop
from zllm.sampling import choice_seed
from zllm.text.chat_template import ChatTemplate
from zllm.text.tokenizer import Tokenizer
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.linear_weight import F32

DEFAULT_CONTEXT = 4096  # tokens, where the model allows more
DEFAULT_LANES = 16

T = TypeVar("T")


def drive(main: Coroutine[Any, Any, T]) -> T:
    """Run the one async loop synchronously: natively its await blocks and never yields."""
    try:
        main.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the engine yielded natively: a driver awaited something else than a ticket")


class Job:
    """One request on its way: its choices, and the chunks nobody has taken yet."""

    def __init__(self, request: Request, prompt: tuple[int, ...], name: str) -> None:
        self.id = ("chatcmpl-" if request.chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self.request = request
        self.prompt = prompt
        self.model = request.model or name
        self.choices: list[Choice] = []

    @property
    def done(self) -> bool:
        finished = [choice.finish is not None for choice in self.choices]
        return bool(finished) and all(finished)

    def check(self) -> None:
        """GenerationError if a choice failed."""
        for choice in self.choices:
            if choice.finish == "error":
                raise GenerationError(choice.sequence.error)


class Engine:
    """A loaded model. Safe to use from several threads; requests share rounds.

    model: a GGUF file, a Hugging Face folder, a name `zllm pull` knows, or `hf:owner/repo/file`.
    context: most tokens of a sequence. cache_tokens: tokens cached for all sequences together.
    lanes: most sequences that run at once. resident: "f32", or "packed" for less memory (oracle).
    progress: called with (bytes loaded, bytes in all). Errors: LoadError, BackendError.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        backend: str = "auto",
        context: int | None = None,
        cache_tokens: int | None = None,
        lanes: int = DEFAULT_LANES,
        resident: str = "f32",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        _check_count("lanes", lanes)
        _check_count("cache_tokens", cache_tokens)
        self.path = hub.resolve(model)
        self.name = str(model)
        self.checkpoint: Checkpoint = open_checkpoint(self.path)
        config = self.checkpoint.config
        self.context = _context(context, config.context)
        self.vocabulary: int = config.vocabulary
        self.backend = create_backend(backend, lanes=lanes, resident=resident)
        self._loop = self._build(
            lanes, cache_tokens or max(2 * self.context, DEFAULT_CONTEXT), progress
        )
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()  # held during a round
        self._changes: deque[Callable[[], None]] = deque()  # to make between two rounds
        self._closed = False

    def _build(
        self, lanes: int, cache_tokens: int, progress: Callable[[int, int], None] | None
    ) -> Loop:
        loaded, total = 0, self.checkpoint.size_bytes

        def count(size_bytes: int) -> None:
            nonlocal loaded
            loaded += size_bytes
            if progress is not None:
                progress(loaded, total)

        return build_loop(
            self.checkpoint.architecture,
            self.checkpoint.config,
            self.backend,
            lambda group: ModelResources(
                self.backend, self.checkpoint.tensors, F32, group, self.context, count
            ),
            Limits(self.context, lanes, self.vocabulary),
            cache_tokens=cache_tokens,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """LoadError if the model comes without one."""
        files = self.checkpoint.tokenizer_files
        if files is None:
            return Tokenizer.from_gguf(self.checkpoint.metadata)
        if files.tokenizer is None:
            raise LoadError(
                f"{self.path} has no tokenizer.json, so it takes token ids only: "
                "add the file, or send `tokens`"
            )
        tokenizer = Tokenizer.from_hf(files.tokenizer, files.config)
        tokenizer.chat_template = files.chat_template or tokenizer.chat_template
        return tokenizer

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """LoadError if the model comes without one."""
        if self.tokenizer.chat_template is None:
            raise LoadError(
                f"{self.path} has no chat template: send `prompt` instead of `messages`"
            )
        return ChatTemplate.of(self.tokenizer)

    # Requests

    def generate(self, request: Mapping[str, Any]) -> Json:
        """One answer, OpenAI-shaped. RequestError names a bad field; GenerationError: it failed."""
        return self.generate_many([request])[0]

    def generate_many(self, requests: Sequence[Mapping[str, Any]]) -> list[Json]:
        """Answers to several requests that share rounds. All are checked before any starts."""
        jobs = self._start(requests)
        try:
            while not all(job.done for job in jobs):
                self._step()
            return [self._answer(job) for job in jobs]
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
            return [self._answer(job) for job in jobs]
        finally:
            self._drop(jobs)

    def astream(self, request: Mapping[str, Any]) -> AsyncIterator[Json]:
        chunks = self._achunks(self._start([request])[0])
        drive(chunks.__anext__())
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
            parse_request({"tokens": list(tokens)}, vocabulary=self.vocabulary)
        with self._lock:
            self._check_open()
            lengths = split or [max(len(tokens) for tokens in batch)]
            return drive(forced_logits(self._loop, batch, lengths))

    def prompt_ids(self, request: Request) -> tuple[int, ...]:
        """Token ids of a request's prompt; text of users never becomes a control token."""
        if request.tokens is not None:
            return request.tokens
        if request.prompt is not None:
            return tuple(self.tokenizer.encode_prompt(request.prompt))
        ids = self.chat_template.encode(
            self.tokenizer,
            request.messages or [],
            tools=request.tools,
            **request.chat_template_kwargs,
        )
        return tuple(ids)

    def close(self) -> None:
        """Free the model; running requests end as cancelled. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._make_changes()
            for job in list(self._jobs.values()):
                self._cancel(job)
            self.backend.close()
            self.checkpoint.close()

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
                request = parse_request(body, vocabulary=self.vocabulary)
                self._tokenizer_or_none(request)
                job = Job(request, self.prompt_ids(request), self.name)
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
        tokenizer = self._tokenizer_or_none(job.request)
        first = None
        for index in range(job.request.n):
            sequence = self._loop.add(self._generation(job, index), after=first)
            first = first or sequence
            job.choices.append(Choice(index, sequence, job.request, tokenizer))

    def _cancel(self, job: Job) -> None:
        for choice in job.choices:
            self._loop.cancel(choice.sequence)
            choice.pump()

    def _tokenizer_or_none(self, request: Request) -> Tokenizer | None:
        """Requests of token ids work without a tokenizer, unless they ask for stop strings."""
        if request.tokens is None or request.stop:
            return self.tokenizer
        try:
            return self.tokenizer
        except ZllmError:
            return None

    def _generation(self, job: Job, choice: int) -> Generation:
        r, says = job.request, self.checkpoint.generation
        temperature = _first(r.temperature, says.temperature, 1.0)
        stops = set(r.stop_token_ids) | (set() if r.ignore_eos else self._eos_ids(r))
        return Generation(
            prompt=job.prompt,
            max_tokens=r.max_tokens or self.context,
            min_tokens=r.min_tokens,
            stop_ids=frozenset(stops),
            temperature=0.0 if temperature < GREEDY_TEMPERATURE else temperature,
            top_k=min(max(int(_first(r.top_k, says.top_k, 0)), 0), self.vocabulary),
            top_p=_first(r.top_p, says.top_p, 1.0),
            min_p=_first(r.min_p, says.min_p, 0.0),
            repetition=_first(r.repetition_penalty, says.repetition_penalty, 1.0),
            frequency=r.frequency_penalty,
            presence=r.presence_penalty,
            seed=choice_seed(r.seed, choice),
            logit_bias=tuple(sorted(r.logit_bias.items())),
            top_logprobs=min(r.top_logprobs, self.vocabulary),
        )

    def _eos_ids(self, request: Request) -> set[int]:
        tokenizer = self._tokenizer_or_none(request)
        ids = set(self.checkpoint.generation.eos) | set(tokenizer.eos_ids if tokenizer else ())
        return {id for id in ids if id < self.vocabulary}

    async def _round(self) -> None:
        self._make_changes()
        await self._loop.step()
        for job in list(self._jobs.values()):
            for choice in job.choices:
                if choice.finish is None and choice.pump():
                    self._loop.cancel(choice.sequence, "stop")

    def _step(self) -> None:
        with self._lock:
            self._check_open()
            drive(self._round())
        self._settle()

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

    @cached_property
    def _async_lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed")

    # Answers

    def _chunks(self, job: Job) -> Iterator[Json]:
        try:
            yield {}
            yield from self._opening(job)
            while True:
                done = job.done
                yield from self._take(job)
                if done:
                    break
                self._step()
            yield from self._closing(job)
        finally:
            self._drop([job])

    async def _achunks(self, job: Job) -> AsyncGenerator[Json, None]:
        try:
            yield {}
            for chunk in self._opening(job):
                yield chunk
            while True:
                done = job.done
                for chunk in self._take(job):
                    yield chunk
                if done:
                    break
                await self._astep()
            for chunk in self._closing(job):
                yield chunk
        finally:
            self._drop([job])

    def _opening(self, job: Job) -> Iterator[Json]:
        if job.request.chat:
            for index in range(job.request.n):
                delta = {"role": "assistant", "content": ""}
                body = {"index": index, "delta": delta, "finish_reason": None}
                yield self._envelope(job, [body], chunk=True)

    def _take(self, job: Job) -> Iterator[Json]:
        job.check()
        tokenizer = self._tokenizer_or_none(job.request)
        detailed = job.request.return_token_ids or job.request.top_logprobs >= 0
        for choice in job.choices:
            while choice.deltas:
                delta: Delta = choice.deltas.popleft()
                if delta.text or delta.finish or (detailed and delta.drawn):
                    body = chunk_choice(choice.index, delta, job.request, tokenizer)
                    yield self._envelope(job, [body], chunk=True)

    def _closing(self, job: Job) -> Iterator[Json]:
        if job.request.include_usage:
            last = self._envelope(job, [], chunk=True)
            last["usage"] = usage(len(job.prompt), job.choices)
            yield last

    def _answer(self, job: Job) -> Json:
        job.check()
        tokenizer = self._tokenizer_or_none(job.request)
        bodies = [whole_choice(choice, job.request, tokenizer) for choice in job.choices]
        answer = self._envelope(job, bodies, chunk=False)
        if job.request.return_token_ids:
            answer["prompt_token_ids"] = list(job.prompt)
        answer["usage"] = usage(len(job.prompt), job.choices)
        return answer

    def _envelope(self, job: Job, choices: list[Json], *, chunk: bool) -> Json:
        kind = "text_completion"
        if job.request.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": job.id,
            "object": kind,
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }

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


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
