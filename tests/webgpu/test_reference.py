"""Ops of a WebGPU plan on the oracle: right answers, one notice, one error for a wrong name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.backend.oracle.ops import LOWER
from zllm.embedded import Engine
from zllm.errors import BackendError, Notice

pytestmark = pytest.mark.vulkan

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TOLERANCE = 1e-4  # of the largest logit; what a skipped host step leaves is beyond 1e-1
LLAMA = ("embed", "rms_norm", "linear", "gated_linear", "rope_append", "attend", "logits")


def engine(folder: str, *ops: str, **options: Any) -> Engine:
    return Engine(
        model=GOLDEN / folder,
        backend="webgpu",
        context=128,
        lanes=2,
        kv_dtype="f32",
        reference_ops=ops,
        **options,
    )


@pytest.mark.parametrize("ops", [*((name,) for name in LLAMA), LLAMA], ids=",".join)
def test_logits_are_the_same(ops: tuple[str, ...]) -> None:
    golden = np.load(GOLDEN / "llama" / "golden.npz")
    with engine("llama", *ops) as opened:
        assert opened.backend.rounds_in_flight == 1
        (logits,) = opened.logits([golden["p1_ids"].tolist()], [29, 21, 1, 20])
    truth = golden["p1_truth"]
    assert np.abs(logits - truth).max() <= TOLERANCE * np.abs(truth).max()


@pytest.mark.parametrize(
    ("folder", "ops"),
    [
        ("kimi_linear", ("conv", "delta", "gated_norm", "latent_append", "attend_latent")),
        ("glm5_next", ("index_append", "select", "hc_split", "route", "experts")),
        ("deepseek_v4", ("compress_append", "select_entries", "attend_compressed")),
    ],
)
def test_caches_of_every_kind(folder: str, ops: tuple[str, ...]) -> None:
    golden = np.load(GOLDEN / folder / "golden.npz")
    with engine(folder, *ops) as opened:
        (logits,) = opened.logits([golden["p1_ids"].tolist()], [29, 21, 1, 20])
    truth = golden["p1_truth"]
    assert np.abs(logits - truth).max() <= 1e-3 * np.abs(truth).max()


SAMPLED = {
    "max_tokens": 12,
    "temperature": 1.1,
    "top_p": 0.95,
    "seed": 7,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 2.0},
    "return_token_ids": True,
    "logprobs": 3,
}


@pytest.mark.parametrize("ops", [("sample",), ("embed", "last_rows", "attend", "sample")])
@pytest.mark.parametrize(
    "fields", [{"max_tokens": 12, "temperature": 0, "return_token_ids": True}, SAMPLED]
)
def test_answers_are_the_same(ops: tuple[str, ...], fields: dict[str, Any]) -> None:
    requests = [{"tokens": tokens, **fields} for tokens in ([3, 1, 4, 1, 5], [2, 7, 1])]
    with engine("llama") as plain, engine("llama", *ops) as replaced:
        for first, second in zip(
            plain.generate_many(requests), replaced.generate_many(requests), strict=True
        ):
            assert second["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_a_name_that_is_no_op_lists_those_that_are() -> None:
    with pytest.raises(BackendError, match="'atend'; there are: add, attend, ") as caught:
        engine("llama", "attend", "atend")
    assert all(name in str(caught.value) for name in LOWER)
    assert "\n" not in str(caught.value)


def test_an_op_without_a_kernel_runs_on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu import launch

    monkeypatch.delitem(launch.LOWER, "attend")
    golden = np.load(GOLDEN / "llama" / "golden.npz")
    with pytest.warns(Notice, match="attend runs on the NumPy reference, slowly") as told:
        opened = engine("llama")
    assert len([w for w in told if w.category is Notice]) == 1
    with opened:
        (logits,) = opened.logits([golden["p0_ids"].tolist()])
    truth = golden["p0_truth"]
    assert np.abs(logits - truth).max() <= TOLERANCE * np.abs(truth).max()


def test_f16_caches_pass_through_the_reference() -> None:
    tokens = np.load(GOLDEN / "llama" / "golden.npz")["p1_ids"].tolist()
    options: dict[str, Any] = {"backend": "webgpu", "context": 128, "lanes": 2, "kv_dtype": "f16"}
    with (
        Engine(model=GOLDEN / "llama", **options) as plain,
        Engine(model=GOLDEN / "llama", reference_ops=["rope_append"], **options) as replaced,
    ):
        (expected,), (got,) = (
            plain.logits([tokens], [40, 1, 30]),
            replaced.logits([tokens], [40, 1, 30]),
        )
    assert np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()
