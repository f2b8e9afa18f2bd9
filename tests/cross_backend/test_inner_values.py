"""What happens inside a run of the oracle, against what the reference implementation recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import Op
from zllm.backend.oracle.backend import OracleBackend
from zllm.embedded import Engine

F32 = NDArray[np.float32]
Results = list[tuple[str, list[F32]]]  # by op, in the order of the run

# Not the models whose layers return several streams.
LAYERS = [
    "deepseek_v3",
    "gemma3",
    "gpt_oss",
    "llama",
    "minicpm",
    "qwen2",
    "qwen3",
    "qwen3_moe",
]
ROUTERS = ["deepseek_v32", "glm_moe_dsa"]


def results(folder: str) -> Results:
    """Copies of every op's results in one full run of prompt 0."""
    found: Results = []

    def observe(op: Op, outs: list[F32]) -> None:
        found.append((op.name, [out.copy() for out in outs]))

    engine = Engine(model=GOLDEN / folder, backend="oracle")
    assert isinstance(engine.backend, OracleBackend)
    engine.backend.observer = observe
    engine.logits([recorded(folder)["p0_ids"].astype(int).tolist()])
    engine.close()
    return found


@pytest.mark.parametrize("folder", LAYERS)
def test_outputs_of_layers(folder: str) -> None:
    run = iter(array for _, outs in results(folder) for array in outs)
    truth = recorded(folder)
    layers = json.loads((GOLDEN / folder / "config.json").read_text())["num_hidden_layers"]
    for name in ("hs_in", *(f"hs_{layer}" for layer in range(layers))):
        assert appears(truth[f"p0_{name}"], run), f"no op after the one before computes {name}"


def appears(wanted: F32, run: Iterator[F32]) -> bool:
    near = 1e-4 * np.abs(wanted).max()
    return any(
        array.shape == wanted.shape and np.abs(array - wanted).max() <= near for array in run
    )


@pytest.mark.parametrize("folder", ROUTERS)
def test_chosen_experts_and_their_weights(folder: str) -> None:
    truth = recorded(folder)
    routed = [outs for name, outs in results(folder) if name in ("route", "route_by_token")]
    layers = sorted(int(key.rpartition("_")[2]) for key in truth if key.startswith("p0_router_idx"))
    assert len(routed) == len(layers) > 0
    for layer, (ids, weights) in zip(layers, routed, strict=True):
        np.testing.assert_array_equal(ids, truth[f"p0_router_idx_{layer}"])
        np.testing.assert_allclose(weights, truth[f"p0_router_w_{layer}"], rtol=1e-4, atol=1e-6)
