"""A model as a request meets it: its checkpoint, its tokenizer, its chat template, its defaults."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from zllm import hub
from zllm.errors import LoadError, ZllmError
from zllm.request import GREEDY_TEMPERATURE, Request
from zllm.runtime.generation import Generation
from zllm.sampling import choice_seed
from zllm.text.chat_template import ChatTemplate
from zllm.text.template_names import named_templates
from zllm.text.tokenizer import Tokenizer
from zllm.weight.checkpoint import Checkpoint, open_checkpoint


class Model:
    """An opened model; no weight is read. `name`: a path or whatever `zllm.hub.resolve` knows.

    checkpoint: of a model that is in no file; `name` is then only shown.
    """

    def __init__(self, name: str | Path, *, checkpoint: Checkpoint | None = None) -> None:
        self.name = str(name)
        self.path = hub.resolve(name) if checkpoint is None else Path(self.name)
        self.checkpoint = checkpoint or open_checkpoint(self.path)
        self.vocabulary: int = self.checkpoint.config.vocabulary
        self.context: int = self.checkpoint.config.context

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """LoadError if the model comes without one."""
        return tokenizer_of(self.checkpoint, self.path)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """LoadError if the model comes without one."""
        if not self.tokenizer.chat_templates:
            raise LoadError(
                f"{self.path} has no chat template: send `prompt` instead of `messages`"
            )
        return ChatTemplate.of(self.tokenizer)

    def tokenizer_for(self, request: Request) -> Tokenizer | None:
        """Requests of token ids work without a tokenizer, unless they ask for stop strings."""
        if request.tokens is None or request.stop:
            return self.tokenizer
        try:
            return self.tokenizer
        except ZllmError:
            return None

    def prompt_ids(self, request: Request) -> tuple[int, ...]:
        """Token ids of a request's prompt; text of users never becomes a control token.

        LoadError for an id beyond the model's: some tokenizers know more, which few texts need.
        """
        if request.tokens is not None:
            return request.tokens
        if request.prompt is not None:
            ids = self.tokenizer.encode_prompt(request.prompt)
        else:
            ids = self.chat_template.encode(
                self.tokenizer,
                request.messages or [],
                tools=request.tools,
                **request.chat_template_kwargs,
            )
        if ids and max(ids) >= self.vocabulary:
            raise LoadError(
                f"the tokenizer gives token id {max(ids)}, and {self.name} knows 0 to "
                f"{self.vocabulary - 1}: is the tokenizer that of another model?"
            )
        return tuple(ids)

    def generation(
        self, request: Request, prompt: tuple[int, ...], choice: int, *, max_tokens: int
    ) -> Generation:
        """What to generate: the request's word, else the checkpoint's, else OpenAI's default."""
        r, says = request, self.checkpoint.generation
        temperature = _first(r.temperature, says.temperature, 1.0)
        stops = set(r.stop_token_ids) | (set() if r.ignore_eos else self._eos_ids(r))
        return Generation(
            prompt=prompt,
            max_tokens=r.max_tokens or max_tokens,
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
        tokenizer = self.tokenizer_for(request)
        ids = set(self.checkpoint.generation.eos) | set(tokenizer.eos_ids if tokenizer else ())
        return {id for id in ids if id < self.vocabulary}


def tokenizer_of(checkpoint: Checkpoint, path: Path) -> Tokenizer:
    """The tokenizer that a checkpoint brings. LoadError if it brings none."""
    files = checkpoint.tokenizer_files
    if files is None:
        return Tokenizer.from_gguf(checkpoint.metadata)
    if files.tokenizer is None:
        raise LoadError(
            f"{path} has no tokenizer.json, so it takes token ids only: "
            "add the file, or send `tokens`"
        )
    tokenizer = Tokenizer.from_hf(files.tokenizer, files.config)
    named = named_templates(files.chat_template)
    tokenizer.chat_templates = {**tokenizer.chat_templates, **named}
    return tokenizer


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
