"""Sliding windows: a row sees its own position and the w - 1 before it, however it is fed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cross_backend.backends import chosen
from tests.helpers.files import write_safetensors
from tests.helpers.tiny_model import GOLDEN, altered_copy
from zllm.embedded import Engine

LENGTH = 150  # more than two blocks of rows that the oracle attends together
WIDTH, VOCABULARY = 16, 32
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,  # so that a token's influence ends at the window's edge
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
SPLITS = {"full": None, "1": [1] * LENGTH, "mixed": [70, 1, 1, 3, 60, 1, 14]}
TOKENS = np.random.default_rng(2).integers(0, VOCABULARY, LENGTH).tolist()


def one_layer(folder: Path, window: int) -> Path:
    rng = np.random.default_rng(1)

    def matrix(rows: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, WIDTH)).astype(np.float32)

    layer = "model.layers.0."
    ones = np.ones(WIDTH, np.float32)
    tensors: dict[str, NDArray[np.float32]] = {
        "model.embed_tokens.weight": matrix(VOCABULARY),
        "model.norm.weight": ones,
        f"{layer}input_layernorm.weight": ones,
        f"{layer}post_attention_layernorm.weight": ones,
        f"{layer}self_attn.o_proj.weight": matrix(WIDTH),
        **{f"{layer}mlp.{name}_proj.weight": matrix(WIDTH) for name in ("gate", "up", "down")},
    }
    for name, rows in (("q", WIDTH), ("k", WIDTH // 2), ("v", WIDTH // 2)):
        # Small scores: every key that is seen has its share.
        tensors[f"{layer}self_attn.{name}_proj.weight"] = matrix(rows) * np.float32(0.3)
        tensors[f"{layer}self_attn.{name}_proj.bias"] = np.zeros(rows, np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "sliding_window": window}))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def windows() -> Iterator[Any]:
    """Every backend with windows at the edges of its blocks."""
    for backend in chosen():
        (name,) = backend.values
        for window in [1, 2, 16, 63, 64, 65, 200] if name == "oracle" else [16]:
            yield pytest.param((name, window), marks=backend.marks, id=f"{name}-w{window}")


@pytest.fixture(scope="module", params=windows())
def windowed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, int]]:
    backend, window = request.param
    folder = one_layer(tmp_path_factory.mktemp("window") / "model", window)
    with Engine(model=folder, backend=backend, kv_dtype="f32") as engine:
        yield engine, window


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_a_token_reaches_just_the_rows_of_its_window(
    windowed: tuple[Engine, int], split: list[int] | None
) -> None:
    engine, window = windowed
    changed = [0, 1, 63, 64, 70, 100, LENGTH - 1]
    others = [TOKENS.copy() for _ in changed]
    for tokens, at in zip(others, changed, strict=True):
        tokens[at] = (tokens[at] + 1) % VOCABULARY
    plain, *logits = engine.logits([TOKENS, *others], split)
    for at, got in zip(changed, logits, strict=True):
        differs = np.abs(got - plain).max(axis=1) > 1e-4
        assert np.flatnonzero(differs).tolist() == list(range(at, min(at + window, LENGTH)))


def test_splits_agree(windowed: tuple[Engine, int]) -> None:
    engine, _ = windowed
    full, *others = (engine.logits([TOKENS], split)[0] for split in SPLITS.values())
    for other in others:
        np.testing.assert_allclose(other, full, atol=1e-4)


def test_answers_do_not_depend_on_reused_prefixes(windowed: tuple[Engine, int]) -> None:
    """A window's old keys stay where a prefix shares them."""
    engine, _ = windowed
    request: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "return_token_ids": True}
    asked = [{**request, "tokens": TOKENS[:n]} for n in (90, 60, 90)]
    first, _, again = (engine.generate(body) for body in asked)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 89
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_final_soft_cap(backend: str, tmp_path: Path) -> None:
    capped = altered_copy(GOLDEN / "gemma3", tmp_path / "m", config={"final_logit_softcapping": 2})
    logits = []
    for path in (GOLDEN / "gemma3", capped):
        with Engine(model=path, backend=backend, kv_dtype="f32") as engine:
            logits += engine.logits([[3, 5, 7, 11]])
    assert np.abs(logits[0]).max() > 4
    np.testing.assert_allclose(logits[1], 2 * np.tanh(logits[0] / 2), atol=1e-5)
