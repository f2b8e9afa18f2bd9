"""Caches of latent attention, and the choices of the oracle's runs, as the reference has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import Backend, Op
from zllm.backend.oracle.backend import OracleBackend
from zllm.backend.webgpu.backend import WebGpuBackend
from zllm.embedded import Engine
from zllm.runtime.compose import PAGE_SLOTS

F32 = NDArray[np.float32]
FOLDERS = ["deepseek_v32", "glm_moe_dsa"]
SPLITS = {"full": None, "append": [6, 8, *[1] * 13], "token by token": [1] * 27}


class Inside:
    """A run of prompt 0: what `select` chose per layer, and what the caches hold afterwards."""

    def __init__(self, backend: str, folder: str, split: list[int] | None) -> None:
        self.truth = recorded(folder)
        self.selections: list[list[NDArray[np.int32]]] = []  # per round, per choosing layer
        engine = Engine(model=GOLDEN / folder, backend=backend)
        if isinstance(engine.backend, OracleBackend):
            engine.backend.observer = self._observe
        engine.logits([self.truth["p0_ids"].tolist()], split)
        self.arrays = first_arrays(engine.backend)
        engine.close()

    def _observe(self, op: Op, outs: list[F32]) -> None:
        if op.name == "embed":
            self.selections.append([])
        if op.name == "select":
            self.selections[-1].append(outs[0].view(np.int32).copy())

    def cached(self, name: str) -> F32:
        """The first sequence has the first pages; page 0 is scratch."""
        return self.arrays[name][PAGE_SLOTS : PAGE_SLOTS + len(self.truth["p0_ids"])]


def first_arrays(backend: Backend) -> dict[str, F32]:
    """The first array of each cache [slots, …]."""
    if isinstance(backend, OracleBackend):
        return {name: cache.arrays[0] for name, cache in backend.caches.items()}
    assert isinstance(backend, WebGpuBackend)
    found = {}
    for name, store in backend._stores.items():
        buffer, size = store.buffers[0], store.slot_bytes[0]
        held = np.frombuffer(backend.device.read(buffer, 0, buffer.size_bytes), np.float32)
        found[name] = held.reshape(-1, size // 4)
    return found


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=SPLITS.values(), ids=SPLITS)
def inside(backend: str, folder: str, request: pytest.FixtureRequest) -> Iterator[Inside]:
    yield Inside(backend, folder, request.param)


@pytest.fixture(scope="module", params=SPLITS.values(), ids=SPLITS)
def observed(folder: str, request: pytest.FixtureRequest) -> Inside:
    """On the oracle, whose ops can be watched; tests/kernel/test_indexer.py watches the kernels."""
    return Inside("oracle", folder, request.param)


def layers(inside: Inside, kind: str) -> list[int]:
    return sorted(
        int(name.rpartition("_")[2]) for name in inside.truth if name.startswith(f"p0_{kind}_")
    )


def test_selections(observed: Inside) -> None:
    choosing = layers(observed, "topk")
    for index, layer in enumerate(choosing):
        ours = np.concatenate([found[index] for found in observed.selections])
        theirs = observed.truth[f"p0_topk_{layer}"]  # in order of score, future positions included
        assert ours.shape == theirs.shape
        for position, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
            visible = sorted(key for key in wanted.tolist() if key <= position)
            assert mine.tolist() == visible + [-1] * (len(mine) - len(visible))
    assert all(len(found) == len(choosing) for found in observed.selections)


def test_latents_and_rotated_keys(inside: Inside) -> None:
    for layer in layers(inside, "cache_k"):
        latent, turned = (inside.truth[f"p0_cache_{part}_{layer}"][0] for part in "kv")
        ours = inside.cached(f"layers.{layer}.latent")
        np.testing.assert_allclose(ours[:, : latent.shape[1]], latent, atol=2e-5)
        # The reference keeps the first members of all pairs in front.
        pairs = ours[:, latent.shape[1] :]
        in_front = np.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=1)
        np.testing.assert_allclose(in_front, turned, atol=5e-5)


def test_index_keys(inside: Inside, folder: str) -> None:
    kept = layers(inside, "cache_ik")
    assert sorted(name for name in inside.arrays if name.endswith(".index")) == [
        f"layers.{layer}.index" for layer in kept
    ], "layers that share a choice keep no index keys"
    for layer in kept:
        ours = inside.cached(f"layers.{layer}.index")
        if folder == "glm_moe_dsa":  # interleaved pairs, as above
            ours = np.concatenate([ours[:, 0:8:2], ours[:, 1:8:2], ours[:, 8:]], axis=1)
        np.testing.assert_allclose(ours, inside.truth[f"p0_cache_ik_{layer}"], atol=5e-5)
