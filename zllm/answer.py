"""Answers in OpenAI's shape: one choice's text as its tokens arrive, chunks, and the whole."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from zllm.request import Request
from zllm.runtime.generation import Drawn, Sequence
from zllm.text.detokenizer import StreamingDetokenizer
from zllm.text.stop import StopStrings
from zllm.text.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(slots=True)
class Delta:
    """What one step added to a choice."""

    text: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    finish: str | None = None


class Choice:
    """Turns a sequence's tokens into text: never half a character, never part of a stop string."""

    def __init__(
        self, index: int, sequence: Sequence, request: Request, tokenizer: Tokenizer | None
    ):
        self.index = index
        self.sequence = sequence
        self.min_tokens = request.min_tokens
        self.text = ""
        self.drawn: list[Drawn] = []
        self.finish: str | None = None
        self.deltas: deque[Delta] = deque()
        self._detokenizer = _detokenizer(tokenizer, request) if tokenizer else None
        self._stops = StopStrings(request.stop)

    def pump(self) -> bool:
        """Take the tokens drawn since; True if a stop string ended the text."""
        delta = Delta()
        matched = False
        while self.sequence.drawn and not matched:
            drawn = self.sequence.drawn.popleft()
            delta.drawn.append(drawn)
            last = self.sequence.finish == "stop" and not self.sequence.drawn
            if not last:  # a stop token ends the text and is no part of it
                text, matched = self._push(drawn.token, len(self.drawn) + len(delta.drawn))
                delta.text += text
        if matched:
            delta.finish = "stop"
        elif self.sequence.finish is not None and self.finish is None:
            delta.text += self._flush()
            # A stop string may be settled only by the end of the text.
            delta.finish = "stop" if self._stops.matched else self.sequence.finish
        if delta.drawn or delta.finish:
            self._append(delta)
        return matched

    def _append(self, delta: Delta) -> None:
        """Text goes before the delta that ends a choice: some clients read no text from that."""
        self.text += delta.text
        self.drawn += delta.drawn
        self.finish = delta.finish
        if delta.finish and delta.text:
            self.deltas.append(Delta(delta.text, delta.drawn))
            delta = Delta(finish=delta.finish)
        self.deltas.append(delta)

    def _push(self, token: int, count: int) -> tuple[str, bool]:
        if self._detokenizer is None:
            return "", False
        text = self._detokenizer.push(token)
        if count < self.min_tokens:
            return text, False
        return self._stops.push(text)

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text, matched = self._stops.push(self._detokenizer.flush())
        return text if matched else text + self._stops.flush()


def _detokenizer(tokenizer: Tokenizer, request: Request) -> StreamingDetokenizer:
    """A completion goes on where the prompt ends, so its first space counts."""
    return StreamingDetokenizer(tokenizer, continues=not request.chat)


def usage(prompt_tokens: int, choices: list[Choice]) -> Json:
    completion = sum(len(choice.drawn) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": choices[0].sequence.cached_tokens},
    }


def whole_choice(choice: Choice, request: Request, tokenizer: Tokenizer | None) -> Json:
    body: Json = {"index": choice.index}
    if request.chat:
        body["message"] = {"role": "assistant", "content": choice.text}
    else:
        body["text"] = choice.text
    body["logprobs"] = logprobs(choice.drawn, request, tokenizer)
    body["finish_reason"] = choice.finish
    if request.return_token_ids:
        body["token_ids"] = [drawn.token for drawn in choice.drawn]
    return body


def chunk_choice(index: int, delta: Delta, request: Request, tokenizer: Tokenizer | None) -> Json:
    body: Json = {"index": index}
    if request.chat:
        body["delta"] = {"content": delta.text} if delta.text else {}
    else:
        body["text"] = delta.text
    body["logprobs"] = logprobs(delta.drawn, request, tokenizer) if delta.drawn else None
    body["finish_reason"] = delta.finish
    if request.return_token_ids:
        body["token_ids"] = [drawn.token for drawn in delta.drawn]
    return body


def logprobs(drawn: list[Drawn], request: Request, tokenizer: Tokenizer | None) -> Json | None:
    """Chat: a list of tokens with alternatives. Completions: parallel lists."""
    if request.top_logprobs < 0:
        return None
    if request.chat:
        content = []
        for one in drawn:
            entry = _token_logprob(one.token, one.logprob, tokenizer)
            entry["top_logprobs"] = [_token_logprob(t, p, tokenizer) for t, p in one.top]
            content.append(entry)
        return {"content": content}
    return {
        "tokens": [_token_text(one.token, tokenizer) for one in drawn],
        "token_logprobs": [one.logprob for one in drawn],
        "top_logprobs": [{_token_text(t, tokenizer): p for t, p in one.top} for one in drawn],
    }


def _token_logprob(token: int, logprob: float | None, tokenizer: Tokenizer | None) -> Json:
    data = tokenizer.token_bytes(token) if tokenizer else b""
    return {
        "token": _token_text(token, tokenizer),
        "token_id": token,
        "logprob": logprob,
        "bytes": list(data),
    }


def _token_text(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"token_id:{token}"
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")
