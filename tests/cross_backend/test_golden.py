"""Logits and greedy ids of the reference implementation in the `transformers` library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cross_backend.backends import BACKENDS, chosen
from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine

MODELS = [
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v3_fp8",
    "deepseek_v3_noqlora",
    "deepseek_v4",
    "gemma3",
    "glm5_next",
    "glm5_next_b",
    "glm5_next_fp8",
    "glm5_next_mtp",
    "glm5_next_notail",
    "glm_moe_dsa",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "kimi_linear",
    "llama",
    "llama_rope3",
    "minicpm",
    "minicpm3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
]
PROMPTS = [0, 1, 2]


@dataclass(frozen=True, slots=True)
class Golden:
    engine: Engine
    ids: list[list[int]]
    truth: list[NDArray[np.float32]]
    cuts: list[list[int]]
    greedy: list[int]
    first_row: int  # rows before it have nothing to attend to, and no meaning in the reference
    tolerance: float

    def check(self, prompt: int, logits: NDArray[np.float32]) -> None:
        truth = self.truth[prompt]
        assert logits.shape == truth.shape and logits.dtype == np.float32
        assert np.isfinite(logits).all()
        difference = np.abs(logits - truth)[self.first_row :]
        worst = difference.max(initial=0) / np.abs(truth).max()
        assert worst <= self.tolerance, f"prompt {prompt}: {worst:.2e} of max|logit|"

    def forced(self, prompts: Sequence[int], split: list[int] | None = None) -> None:
        batch = [self.ids[prompt] for prompt in prompts]
        for prompt, logits in zip(prompts, self.engine.logits(batch, split), strict=True):
            self.check(prompt, logits)


def pairs() -> Iterator[Any]:
    """Every backend with each model."""
    for backend in chosen():
        (name,) = backend.values
        for model in MODELS:
            yield pytest.param((name, model), marks=backend.marks, id=f"{name}-{model}")


@pytest.fixture(scope="module", params=pairs())
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    backend, model = request.param
    folder = GOLDEN / model
    facts = json.loads((folder / "golden.json").read_text())
    engine = Engine(model=folder, backend=backend, kv_dtype="f32")
    with np.load(folder / "golden.npz") as arrays:
        yield Golden(
            engine,
            [arrays[f"p{i}_ids"].tolist() for i in PROMPTS],
            [arrays[f"p{i}_truth"] for i in PROMPTS],
            [prompt["cuts"] for prompt in facts["prompts"]],
            arrays["p0_greedy"].tolist(),
            facts.get("valid_from_row", 0),
            BACKENDS[backend].logits,
        )
    engine.close()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_full(golden: Golden, prompt: int) -> None:
    golden.forced([prompt])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prefill_append_decodes(golden: Golden, prompt: int) -> None:
    """The cuts of the reference: a prefill, an append of several tokens, then single ones."""
    first, second = golden.cuts[prompt]
    rest = len(golden.ids[prompt]) - second
    golden.forced([prompt], [first, second - first, *[1] * rest])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_token_by_token(golden: Golden, prompt: int) -> None:
    golden.forced([prompt], [1] * len(golden.ids[prompt]))


@pytest.mark.parametrize(
    "split", [None, [20, 20, 31], [1] * 71, [2, 1, *[4] * 17]], ids=["full", "20", "1", "mixed"]
)
def test_batch_of_different_lengths(golden: Golden, split: list[int] | None) -> None:
    golden.forced(PROMPTS, split)
    golden.forced([1, 2, 0, 2], split)


def test_more_sequences_than_lanes(golden: Golden) -> None:
    golden.forced([2, 0] * 12)


def test_greedy_ids(golden: Golden) -> None:
    request = {"tokens": golden.ids[0], "temperature": 0, "return_token_ids": True}
    answer = golden.engine.generate(
        {**request, "max_tokens": len(golden.greedy), "ignore_eos": True}
    )
    assert answer["choices"][0]["token_ids"] == golden.greedy
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["prompt_token_ids"] == golden.ids[0]


def test_logits_after_many_answers_filled_the_cache(golden: Golden) -> None:
    for first in range(13):
        tokens = ([first] + golden.ids[1] * 5)[: golden.engine.model.context - 1]
        golden.engine.generate({"tokens": tokens, "max_tokens": 1, "temperature": 0})
    golden.forced(PROMPTS)
