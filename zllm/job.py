"""One request on its way: its choices, its chunks, its answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from zllm.answer import Choice, Json, chunk_choice, usage, whole_choice
from zllm.errors import GenerationError
from zllm.request import Request
from zllm.text.tokenizer import Tokenizer


class Job:
    """Chunks come in order: `opening`, then `take` until `done`, then `closing`."""

    def __init__(
        self, request: Request, prompt: tuple[int, ...], model: str, tokenizer: Tokenizer | None
    ) -> None:
        self.id = ("chatcmpl-" if request.chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self.request = request
        self.prompt = prompt
        self.model = request.model or model
        self.tokenizer = tokenizer
        self.choices: list[Choice] = []
        self.losses = 0  # of the device, while it ran

    @property
    def done(self) -> bool:
        finished = [choice.finish is not None for choice in self.choices]
        return bool(finished) and all(finished)

    def opening(self) -> Iterator[Json]:
        """Chat streams begin with the role of each choice."""
        if self.request.chat:
            for index in range(self.request.n):
                delta = {"role": "assistant", "content": ""}
                body = {"index": index, "delta": delta, "finish_reason": None}
                yield self._envelope([body], chunk=True)

    def take(self) -> Iterator[Json]:
        """The chunks since the last call. GenerationError if a choice failed."""
        self._check()
        detailed = self.request.return_token_ids or self.request.top_logprobs >= 0
        for choice in self.choices:
            while choice.deltas:
                delta = choice.deltas.popleft()
                if delta.text or delta.finish or (detailed and delta.drawn):
                    body = chunk_choice(choice.index, delta, self.request, self.tokenizer)
                    yield self._envelope([body], chunk=True)

    def closing(self) -> Iterator[Json]:
        if self.request.include_usage:
            last = self._envelope([], chunk=True)
            last["usage"] = usage(len(self.prompt), self.choices)
            yield last

    def answer(self) -> Json:
        """The whole answer. GenerationError if a choice failed."""
        self._check()
        bodies = [whole_choice(choice, self.request, self.tokenizer) for choice in self.choices]
        answer = self._envelope(bodies, chunk=False)
        if self.request.return_token_ids:
            answer["prompt_token_ids"] = list(self.prompt)
        answer["usage"] = usage(len(self.prompt), self.choices)
        return answer

    def _check(self) -> None:
        for choice in self.choices:
            if choice.finish == "error":
                raise GenerationError(choice.sequence.error)

    def _envelope(self, choices: list[Json], *, chunk: bool) -> Json:
        kind = "text_completion"
        if self.request.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
