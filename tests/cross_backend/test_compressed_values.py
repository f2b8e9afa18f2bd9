"""What happens inside a run with compressed attention, however it is cut, and after a prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from tests.helpers.golden import F32, recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import Op
from zllm.backend.oracle import compressed_ops
from zllm.backend.oracle.backend import OracleBackend
from zllm.embedded import Engine
from zllm.runtime.compose import PAGE_SLOTS

FOLDER = "deepseek_v4"
ROWS = 27
SPLITS = {"full": None, "append": [6, 8, *[1] * 13], "token by token": [1] * ROWS}
RATES = {1: 4, 2: 8, 3: 4}  # of layers with entries


class Inside:
    """A run of prompt 0: the results of its ops over all rows, and what the caches hold."""

    def __init__(self, split: list[int] | None) -> None:
        self._rounds: list[dict[str, list[list[F32]]]] = []  # per op its calls, each its results
        with Engine(model=GOLDEN / FOLDER, backend="oracle") as engine:
            assert isinstance(engine.backend, OracleBackend)
            engine.backend.observer = self._observe
            engine.logits([recorded(FOLDER)["p0_ids"].astype(int).tolist()], split)
            self.arrays = {name: c.arrays[-1].copy() for name, c in engine.backend.caches.items()}

    def _observe(self, op: Op, outs: list[F32]) -> None:
        if op.name == "embed":
            self._rounds.append(defaultdict(list))
        self._rounds[-1][op.name].append([out.copy() for out in outs])

    def rows(self, op: str, call: int, result: int = 0) -> F32:
        """A result of the op's n-th call in each round, over all rows."""
        return np.concatenate([found[op][call][result] for found in self._rounds])


@pytest.fixture(scope="module", params=SPLITS.values(), ids=SPLITS)
def inside(request: pytest.FixtureRequest) -> Inside:
    return Inside(request.param)


def near(found: F32, name: str) -> None:
    truth = recorded(FOLDER)[name]
    np.testing.assert_allclose(
        found.reshape(truth.shape), truth, atol=1e-5 * max(1, np.abs(truth).max()), err_msg=name
    )


def test_hyper_connections(inside: Inside) -> None:
    for layer in range(4):
        for site, name in enumerate(("attn", "ffn")):
            for result, part in enumerate(("in", "post", "comb")):
                found = inside.rows("hc_split", 2 * layer + site, result)
                near(found, f"p0_{name}_hc_{part}_{layer}")
        near(inside.rows("hc_join", 2 * layer + 1), f"p0_hs_{layer}")


def test_experts(inside: Inside) -> None:
    calls = [("route_by_token", 0), ("route", 0), ("route", 1), ("route_by_token", 1)]
    for layer, (op, call) in enumerate(calls):
        ids = inside.rows(op, call).view(np.int32)
        np.testing.assert_array_equal(ids, recorded(FOLDER)[f"p0_router_idx_{layer}"])
        near(inside.rows(op, call, 1), f"p0_router_w_{layer}")


def test_selections(inside: Inside) -> None:
    for call, layer in enumerate((1, 3)):
        found = inside.rows("select_entries", call).view(np.int32)
        truth = recorded(FOLDER)[f"p0_topk_{layer}"]
        for mine, theirs in zip(found.tolist(), truth.tolist(), strict=True):
            kept = sorted(entry for entry in theirs if entry >= 0)
            assert mine == kept + [-1] * (len(mine) - len(kept))


def test_entries_lie_with_the_last_token_of_their_window(inside: Inside) -> None:
    for layer, rate in RATES.items():
        slots = inside.arrays[f"layers.{layer}.compress.entries"][PAGE_SLOTS:]  # page 0 is scratch
        near(slots[rate - 1 : ROWS : rate], f"p0_ckv_{layer}")


def test_raw_keys(inside: Inside) -> None:
    for layer in range(4):
        ours = inside.arrays[f"layers.{layer}.kv"][PAGE_SLOTS : PAGE_SLOTS + ROWS]
        truth = recorded(FOLDER)[f"p0_cache_k_{layer}"]  # [1, window - 1, K]
        np.testing.assert_allclose(ours[-truth.shape[1] :], truth[0], atol=1e-5)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return [int(token) for token in recorded(FOLDER)["p1_ids"]]


def answer(engine: Engine, tokens: list[int]) -> tuple[list[int], int]:
    """Greedy ids, and how many tokens of the prompt were cached."""
    request = {"tokens": tokens, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    found = engine.generate({**request, "return_token_ids": True})
    cached: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found["choices"][0]["token_ids"], cached


@pytest.fixture(scope="module")
def after_a_prefix() -> Iterator[Engine]:
    with Engine(model=GOLDEN / FOLDER, backend="oracle") as engine:
        yield engine


@pytest.mark.parametrize("shared", [3, 4, 7, 8, 9, 15, 16, 17, 22, 31, 32, 33])
def test_a_prefix_is_reused_at_any_place_in_a_window(
    after_a_prefix: Engine, ids: list[int], shared: int
) -> None:
    """What an open window held after the shared tokens belongs to another sequence."""
    answer(after_a_prefix, ids[:45])
    tokens = [*ids[:shared], *(97 - token for token in ids[shared:45])]
    found, cached = answer(after_a_prefix, tokens)
    with Engine(model=GOLDEN / FOLDER, backend="oracle") as fresh:
        expected, none = answer(fresh, tokens)
    assert (none, cached) == (0, shared) and found == expected


@pytest.mark.parametrize("kept", [1, 3, 6, 9, 11])
def test_an_answer_is_continued_from_any_of_its_tokens(ids: list[int], kept: int) -> None:
    """Windows that discarded tokens had completed are completed anew by others."""
    with Engine(model=GOLDEN / FOLDER, backend="oracle") as engine:
        first, _ = answer(engine, ids[:14])
        tokens = [*ids[:14], *first[:kept], *(97 - token for token in first[kept:]), *ids[:5]]
        found, cached = answer(engine, tokens)
    with Engine(model=GOLDEN / FOLDER, backend="oracle") as fresh:
        expected, none = answer(fresh, tokens)
    assert (none, cached) == (0, 14 + kept) and found == expected


def test_rows_cut_into_blocks_give_the_same(
    ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in long sequences, whose scores would not fit."""
    monkeypatch.setattr(compressed_ops, "SCORED", 1000)
    truth = recorded(FOLDER)["p1_truth"]
    with Engine(model=GOLDEN / FOLDER, backend="oracle") as engine:
        logits = engine.logits([ids], [30, 41])[0]
    assert np.abs(logits - truth).max() <= 1e-4 * np.abs(truth).max()
