"""Two sets of RoPE factors [2402.13753]: a sequence takes one of them for all its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cross_backend.backends import chosen
from tests.helpers.tiny_model import altered_copy
from tests.runtime.conftest import LLAMA3, Json, essence
from zllm.embedded import Engine

SWITCH = 20  # original_max_position_embeddings
TOKENS = np.random.default_rng(11).integers(0, 63, 60).tolist()


def engine_with(backend: str, folder: Path, short: list[float], long: list[float]) -> Engine:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": SWITCH,
    }
    path = altered_copy(LLAMA3, folder, config={"rope_scaling": scaling, "rope_parameters": None})
    return Engine(model=path, backend=backend)


@pytest.fixture(scope="module", params=chosen())
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Engine]]:
    """`both` has two sets of factors; the others have one of them whatever the length."""
    backend, root = request.param, tmp_path_factory.mktemp("long_rope")
    short, long = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]
    made = {
        "both": engine_with(backend, root / "both", short, long),
        "short": engine_with(backend, root / "short", short, short),
        "long": engine_with(backend, root / "long", long, long),
    }
    yield made
    for engine in made.values():
        engine.close()


@pytest.mark.parametrize("split", [None, [1] * 60, [15, 30, 15]], ids=["full", "1", "mixed"])
def test_lengths_of_one_batch_take_different_factors(
    engines: dict[str, Engine], split: list[int] | None
) -> None:
    batch = [TOKENS[:SWITCH], TOKENS[: SWITCH + 1], TOKENS[:3], TOKENS]
    kinds = ["short", "long", "short", "long"]
    for kind, tokens, got in zip(kinds, batch, engines["both"].logits(batch, split), strict=True):
        (want,) = engines[kind].logits([tokens], split)
        np.testing.assert_allclose(got, want, atol=1e-5)
    (other,) = engines["short"].logits([TOKENS], split)
    assert np.abs(got - other).max() > 1e-2, "the sets differ enough to be told apart"


def test_only_keys_of_the_same_factors_are_reused(engines: dict[str, Engine]) -> None:
    """What a request may become decides: 12 tokens and up to 9 more stay within 20."""

    def ask(kind: str, max_tokens: int) -> Json:
        request = {"tokens": TOKENS[:12], "max_tokens": max_tokens, "temperature": 0}
        return engines[kind].generate({**request, "ignore_eos": True, "return_token_ids": True})

    reused = []
    for max_tokens, kind in [(9, "short"), (10, "long"), (9, "short"), (10, "long"), (9, "short")]:
        answer = ask("both", max_tokens)
        assert essence(answer) == essence(ask(kind, max_tokens))
        reused.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert reused == [0, 0, 11, 11, 11]
