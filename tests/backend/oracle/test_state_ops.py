"""Ops with state on the oracle: padding stays out, packed weights agree, long splits too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backend.oracle.test_backend import Bucketed
from tests.helpers.golden import recorded
from tests.helpers.tiny_model import CASES, GOLDEN, P12
from tests.runtime.conftest import alone, essence, random_requests
from zllm.embedded import Engine

MODELS = [
    pytest.param(CASES / "tiny-kimi", id="kda"),
    pytest.param(GOLDEN / "glm5_next", id="kda-and-pools"),
]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Engine]:
    with Engine(model=model, backend="oracle") as engine:
        yield engine


def test_padding_changes_nothing(
    model: Path, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zllm.backend.oracle.backend.OracleBackend", Bucketed)
    requests = random_requests(6, 12)
    with Engine(model=model, backend="oracle", lanes=7) as engine:
        assert isinstance(engine.backend, Bucketed)
        answers = [essence(answer) for answer in engine.generate_many(requests)]
        assert answers == alone(plain, requests)
        batch = [P12, P12[:1], P12[:5]]
        for split in (None, [4, 1, 1, 6], [1] * 12):
            for tokens, logits in zip(batch, engine.logits(batch, split), strict=True):
                np.testing.assert_allclose(logits, plain.logits([tokens])[0], atol=1e-4)


def test_packed_weights_give_the_same_logits(model: Path, plain: Engine) -> None:
    with Engine(model=model, backend="oracle", resident="packed") as engine:
        for split in (None, [7, *[1] * 5]):
            found = engine.logits([P12], split)[0]
            np.testing.assert_allclose(found, plain.logits([P12])[0], atol=1e-4)


@pytest.mark.parametrize("rows", [512, 100])
def test_many_chunks_and_pools_in_any_split(model: Path, plain: Engine, rows: int) -> None:
    tokens = np.random.default_rng(1).integers(0, 60, 250).tolist()
    whole = plain.logits([tokens])[0]
    with Engine(model=model, backend="oracle") as engine:
        engine.backend.prefill_rows = rows
        for split in ([250], [63, 1, 64, 65, 57], [1, 128, 2, 119], [200, *[1] * 50]):
            found = engine.logits([tokens, tokens[:90]], split)
            scale = np.abs(whole).max()
            assert np.abs(found[0] - whole).max() <= 1e-4 * scale
            assert np.abs(found[1] - whole[:90]).max() <= 1e-4 * scale


def test_the_peers_own_split_run_agrees() -> None:
    golden = recorded("glm5_next")
    with Engine(model=GOLDEN / "glm5_next", backend="oracle") as engine:
        found = engine.logits([golden["p1_ids"].astype(int).tolist()], [29, 21, *[1] * 21])[0]
    np.testing.assert_allclose(found, golden["p1_inc_logits"], atol=2e-4)
