"""What to generate, and the sequence that is being generated."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import BIAS, PENALTIES, StepLayout
from zllm.kv_cache.paged import PageTable
from zllm.kv_cache.planes import PlaneTable

Finish = Literal["stop", "length", "cancelled", "error"]

BANNED = -1e30  # a bias that no logit outweighs, and finite on every backend


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to one prompt: token ids in, sampling parameters, and when to stop."""

    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    seed: tuple[int, int] = (0, 0)
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = -1

    @property
    def longest(self) -> int:
        """Tokens that may be cached for it: the last one drawn is not."""
        return len(self.prompt) + self.max_tokens - 1

    @property
    def penalised(self) -> bool:
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0

    @property
    def biased(self) -> bool:
        return bool(self.logit_bias) or self.min_tokens > 0

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0 and not self.penalised and not self.biased


class SamplingWords(NamedTuple):
    """What the step words of every round say of a generation; floats and seeds as int32 bits."""

    flags: int
    seed: tuple[int, ...]
    settings: tuple[int, ...]  # StepLayout.SEQ_SAMPLING


NO_SAMPLING = SamplingWords(0, (0, 0), (0,) * len(StepLayout.SEQ_SAMPLING))


def sampling_words(generation: Generation) -> SamplingWords:
    flags = PENALTIES if generation.penalised else 0
    flags |= BIAS if generation.biased else 0
    seed = np.array(generation.seed, np.uint32).view(np.int32)
    values = [getattr(generation, name) for name in StepLayout.SEQ_SAMPLING]
    settings = np.array(values, np.float32).view(np.int32)
    settings[StepLayout.SEQ_SAMPLING.index("top_k")] = generation.top_k  # the one integer
    return SamplingWords(flags, tuple(seed.tolist()), tuple(settings.tolist()))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token as the sampler drew it."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest ids and their logprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one generation. `tokens` are known; `fed` of them were given to rounds.

    A round in flight may have fed one token that the host has not seen: the device carries it.
    """

    generation: Generation
    after: Sequence | None = None  # start once its prompt is cached: another choice of one request
    long: bool = False  # it reads the RoPE rows of sequences beyond `Limits.short_rope`
    tokens: list[int] = field(default_factory=list)  # prompt, then answer
    fed: int = 0  # tokens given to rounds, the carried one included
    target: int = 0  # prefill until this many are fed
    in_flight: int = 0  # rounds that will draw a token for this sequence
    lane: int = -1
    table: PageTable | None = None
    planes: PlaneTable | None = None  # of a model with recurrent state
    checkpoints: dict[int, int] = field(default_factory=dict)  # planes held, by position
    cached_tokens: int = 0  # of the prompt, reused from the prefix cache
    finish: Finish | None = None
    error: str = ""
    sampling: SamplingWords = field(init=False)
    greedy: bool = field(init=False)
    unbanned: bool = False  # stop tokens may be drawn again after min_tokens
    drawn: deque[Drawn] = field(default_factory=deque)  # for the reader to take

    def __post_init__(self) -> None:
        self.tokens = list(self.generation.prompt)
        self.target = len(self.tokens)
        self.sampling = sampling_words(self.generation)
        self.greedy = self.generation.greedy

    @property
    def answered(self) -> int:
        """Tokens of the answer that are known."""
        return len(self.tokens) - len(self.generation.prompt)

    @property
    def prefilling(self) -> bool:
        return self.fed < self.target

    @property
    def ready(self) -> bool:
        first = self.after
        if first is None or first.finish is not None or self.answered:
            return True  # preempted choices start again in any order
        return first.table is not None and first.table.length >= len(first.generation.prompt)

    def rewind(self) -> None:
        """Forget all that a device held: the answer so far is prefilled again."""
        self.fed, self.target, self.in_flight = 0, len(self.tokens), 0
        self.table = self.planes = None
        self.checkpoints = {}

    def fail(self, error: str) -> None:
        """End it with an error, unless it has ended."""
        if self.finish is None:
            self.finish, self.error = "error", error

    def may_decode(self, context: int) -> bool:
        """Whether another token may be drawn, counting those in flight."""
        wanted = self.answered + self.in_flight < self.generation.max_tokens
        return self.finish is None and not self.prefilling and wanted and self.fed < context - 1

    def bias(self, vocabulary: int) -> NDArray[np.float32]:
        """The lane's bias row [V]: the request's, and stop tokens banned below min_tokens."""
        row = np.zeros(vocabulary, np.float32)
        for token, value in self.generation.logit_bias:
            row[token] += value
        if self.banning:
            row[sorted(self.generation.stop_ids)] = BANNED
        return row

    @property
    def banning(self) -> bool:
        return self.answered + self.in_flight < self.generation.min_tokens

    def counts(self, vocabulary: int) -> NDArray[np.int32]:
        """The lane's penalty counts [V] for the tokens known so far."""
        row = np.zeros(vocabulary, np.int32)
        answer = self.tokens[len(self.generation.prompt) :]
        np.add.at(row, answer, 2)
        row[self.tokens] |= 1
        return row

    def accept(self, drawn: Drawn, context: int) -> None:
        """Append a drawn token and decide whether the answer ends."""
        self.tokens.append(drawn.token)
        self.drawn.append(drawn)
        if drawn.token in self.generation.stop_ids:
            self.finish = "stop"
        elif self.answered >= self.generation.max_tokens or len(self.tokens) >= context:
            self.finish = "length"
