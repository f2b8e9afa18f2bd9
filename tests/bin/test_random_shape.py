"""Models of random weights: real shapes, a few rows in memory, the same values on every backend."""

from __future__ import annotations

import math
import resource
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.bin import random_weights
from zllm.bin.random_shape import SHAPES, random_model, random_shape
from zllm.embedded import Engine
from zllm.errors import ZllmError
from zllm.quant import formats
from zllm.quant.weights import decode_all
from zllm.weight.linear_weight import RepeatedRows

PROMPT = [1, 200, 3000, 7, 5]


@pytest.mark.parametrize("format", random_weights.FORMATS)
def test_a_tile_keeps_the_size_of_what_it_multiplies(format: str) -> None:
    data = random_weights.tile(format, 512, seed=0)
    assert data == random_weights.tile(format, 512, seed=0) != random_weights.tile(format, 512, 1)
    values = formats.decode(format, data, 512)
    assert len(values) == random_weights.tile_rows(512) == 2048
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(512**-0.5, rel=0.03)
    assert abs(values.mean()) < 0.05 * values.std()
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    assert (x @ values.T).std() == pytest.approx(1, rel=0.05)


def parameters(tensors: Any) -> int:
    return sum(math.prod(weight.shape) for weight in tensors.values())


def test_shapes_are_those_of_the_models_they_are_named_for() -> None:
    llama = random_model(random_shape("llama-8b", format=None, layers=None))
    assert parameters(llama.checkpoint.tensors) == 8_030_261_248  # as Llama 3 8B is reported
    assert llama.checkpoint.config.rope.theta == 500000
    small = random_model(random_shape("smollm2", format=None, layers=None)).checkpoint
    assert parameters(small.tensors) == 134_515_008  # as SmolLM2-135M is reported
    assert small.tensors["embed"].format == "q8_0"
    assert small.tensors["layers.29.down"].format == "q4_1"


def test_a_large_shape_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = random_model(random_shape("glm-5.3-flash", format="q4_0", layers=5))
    held = {id(w.data.tile) for w in model.checkpoint.tensors.values() if _repeats(w)}
    assert model.checkpoint.size_bytes > 8 << 30
    assert len(held) < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB
    config = model.checkpoint.config
    assert config.is_linear == (True, True, True, False, True)
    assert config.sparse == (False, False, False, True, True)


def _repeats(weight: Any) -> bool:
    return isinstance(weight.data, RepeatedRows)


def test_rows_repeat_and_tensors_differ() -> None:
    tensors = random_model(random_shape("smollm2", format="f16", layers=1)).checkpoint.tensors
    gate, up = decode_all(tensors["layers.0.gate"]), decode_all(tensors["layers.0.up"])
    rows = random_weights.tile_rows(576)
    np.testing.assert_array_equal(gate[rows:], gate[: len(gate) - rows])
    assert len(np.unique(gate[:rows], axis=0)) == rows
    assert not np.array_equal(gate, up)


def logits(name: str, backend: str, format: str | None) -> NDArray[np.float32]:
    model = random_model(random_shape(name, format=format, layers=1))
    with Engine(model=model, backend=backend, context=64, lanes=1, resident="packed") as engine:
        return engine.logits([PROMPT])[0]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_numbers_of_a_sane_size(name: str) -> None:
    found = logits(name, "oracle", None)
    assert np.isfinite(found).all()
    assert 0.1 < found.std() < 10


@pytest.mark.vulkan
@pytest.mark.parametrize("format", [None, "q5_1", "bf16"])
def test_backends_agree(format: str | None) -> None:
    expected = logits("smollm2", "oracle", format)
    found = logits("smollm2", "webgpu", format)
    # Keys and values of f16 there, of f32 here.
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "format", "layers", "message"),
    [
        ("gpt-5", None, None, "--random-shape gpt-5: use one of llama-8b, "),
        ("smollm2", "q9", None, "--format q9: use one of f32, f16, "),
        ("smollm2", None, 0, "--layers must be from 1 to 30, got 0"),
        ("llama-8b", None, 33, "--layers must be from 1 to 32, got 33"),
        ("smollm2", "q4_k", None, "--format q4_k: .* has rows of 576, .* blocks of 256"),
    ],
)
def test_what_cannot_be_made_is_said(
    name: str, format: str | None, layers: int | None, message: str
) -> None:
    with pytest.raises(ZllmError, match=message):
        random_model(random_shape(name, format=format, layers=layers))


def test_it_takes_token_ids_only() -> None:
    model = random_model(random_shape("smollm2", format=None, layers=1))
    with (
        Engine(model=model, backend="oracle", context=64, resident="packed") as engine,
        pytest.raises(ZllmError, match="takes token ids only"),
    ):
        engine.generate({"prompt": "hello"})
