"""Latents and selections through the oracle's ops: what is read, what is not, and in which form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.attention import mla
from zllm.attention.dsa import SelectSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Group, Op, PlanKey, Value
from zllm.backend.oracle.backend import OracleBackend
from zllm.kv_cache.spec import IndexSpec, LatentSpec
from zllm.runtime.compose import ArrayBytes
from zllm.runtime.recorder import Recorder
from zllm.weight.linear_weight import F32 as F32Weight

F32 = NDArray[np.float32]

GROUP = Group("full", 4, 64)
SPEC = MlaSpec(3, 4, 2, 5, 6, 6**-0.5)
SELECT = SelectSpec(2, 4, 3)
PIECES = [(0, 5), (7, 1), (30, 70)]  # first position and rows of each sequence
ROWS = sum(count for _, count in PIECES)
# Pages of each sequence: in a run, alone, scattered.
PAGES = [[3, 4], [9, 11], [*range(40, 14, -1)]]


class Bench:
    """One round of three sequences whose earlier tokens are cached."""

    def __init__(self, *, packed: bool = False) -> None:
        self.rng = np.random.default_rng(11)
        self.backend = OracleBackend(lanes=3, packed=packed)
        self.kv_b = self.random(SPEC.heads * (SPEC.nope + SPEC.value), SPEC.rank)
        self.latents = self.backend.new_cache("latent", LatentSpec(8), group=GROUP)
        self.index = self.backend.new_cache("index", IndexSpec(4), group=GROUP)
        self.histories = [self.random(100, 8) for _ in PIECES]
        (array,) = self.backend.caches["latent"].arrays
        array[:] = np.nan  # whatever is read without need shows
        for (first, _), pages, history in zip(PIECES, PAGES, self.histories, strict=True):
            for position in range(first):
                array[pages[position // 4] * 4 + position % 4] = history[position]
        self.results: dict[str, F32] = {}
        self.backend.observer = self._observe

    def _observe(self, op: Op, outs: list[F32]) -> None:
        for number, out in enumerate(outs):
            self.results[f"{op.name}.{number}"] = out.copy()

    def random(self, *shape: int) -> F32:
        return self.rng.standard_normal(shape).astype(np.float32)

    def table(self, name: str, array: F32) -> F32:
        """Rows of `array` come to the ops as the embeddings of tokens 0, 1, …"""
        weight = F32Weight(array.shape, ArrayBytes(array))
        self.weight = self.backend.load(name, [weight], uses=frozenset({"embed", "attend_latent"}))
        return array

    def run(self, record: Callable[[Recorder], None]) -> None:
        key = PlanKey(ROWS, len(PIECES), 128, "none")
        ops = Recorder(key, self.backend.missing)
        record(ops)
        plan = self.backend.compile(ops.finish([GROUP]))
        plan.submit(self._step(plan.layout)).round  # noqa: B018

    def _step(self, layout: object) -> NDArray[np.int32]:
        words = np.zeros(layout.words, np.int32)  # type: ignore[attr-defined]

        def of(name: str) -> NDArray[np.int32]:
            at, size = layout.offset[name], layout.size[name]  # type: ignore[attr-defined]
            return words[at : at + size]

        of("valid_rows")[0], of("valid_seqs")[0] = ROWS, len(PIECES)
        of("token")[:] = np.arange(ROWS)
        row = 0
        for seq, ((first, count), pages) in enumerate(zip(PIECES, PAGES, strict=True)):
            positions = np.arange(first, first + count)
            of("full.table").reshape(len(PIECES), -1)[seq, : len(pages)] = pages
            rows = slice(row, row + count)
            of("seq")[rows], of("position")[rows] = seq, positions
            of("full.row_slot")[rows] = np.array(pages)[positions // 4] * 4 + positions % 4
            of("first_row")[seq], of("last_row")[seq] = row, row + count - 1
            of("length")[seq] = first + count
            row += count
        return words


def split(array: F32) -> list[F32]:
    return np.split(array, np.cumsum([count for _, count in PIECES])[:-1])


def causal(first: int, count: int) -> NDArray[np.bool_]:
    return np.arange(first + count) <= np.arange(first, first + count)[:, None]


def wanted(bench: Bench, q: F32, new: F32, visible: list[NDArray[np.bool_]]) -> F32:
    """Each sequence by the expanded reference over the keys that each row sees, one by one."""
    out: list[F32] = []
    queries = split(q.reshape(ROWS, SPEC.heads, -1))
    for (first, _), history, rows, own, sees in zip(
        PIECES, bench.histories, queries, split(new), visible, strict=True
    ):
        latents = np.concatenate([history[:first], own])
        for row, mask in zip(rows, sees, strict=True):
            keys, values = mla.expand(latents[mask], bench.kv_b, SPEC)
            out.append(mla.attend_expanded(row[None], keys, values, None, SPEC)[0].reshape(-1))
    return np.stack(out)


def attend(bench: Bench, selection: SelectSpec | None) -> F32:
    """Append and attend, always the same rows; with `selection` over what `select` chooses."""
    rows = np.random.default_rng(12).standard_normal((ROWS, 40)).astype(np.float32)
    numbers = bench.table("rows", rows)
    table = bench.weight
    bench.table("kv_b", bench.kv_b)
    kv_b = bench.weight
    eye = np.eye(numbers.shape[1], dtype=np.float32)
    cuts = [18, 6, 2, 8, 2, 4]  # q, latent, rotated key, index queries, head weights, index keys
    parts = [F32Weight(p.shape, ArrayBytes(p)) for p in np.split(eye, np.cumsum(cuts)[:-1])]
    pick = bench.backend.load("pick", parts, uses=frozenset({"linear"}))

    def record(ops: Recorder) -> None:
        q, c, k_rope, index_q, head_weights, index_k = ops.project(ops.embed(table), pick)
        ops.latent_append(c, k_rope, bench.latents)
        chosen: Value | None = None
        if selection is not None:
            ops.index_append(index_k, bench.index)
            chosen = ops.select(index_q, head_weights, bench.index, selection)
        a = ops.attend_latent(q, kv_b, bench.latents, SPEC, chosen=chosen)
        # A sink that keeps the attention in the list.
        ops.record("logits", (a,), [])

    bench.run(record)
    return numbers


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("absorbed", [False, True, None], ids=["expanded", "absorbed", "cheaper"])
def test_dense_attention_in_both_forms(
    absorbed: bool | None, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absorbed is not None:
        monkeypatch.setattr(mla, "absorbed_is_cheaper", lambda rows, keys, spec: absorbed)
    bench = Bench(packed=packed)
    numbers = attend(bench, None)
    visible = [causal(first, count) for first, count in PIECES]
    expected = wanted(bench, numbers[:, :18], numbers[:, 18:26], visible)
    found = bench.results["attend_latent.0"]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("gathered", [1, 200, 1 << 20], ids=["row by row", "some", "all at once"])
def test_sparse_attention_reads_the_chosen_latents_only(
    gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latents that no row chose are made NaN: O(rows·k), whatever the length."""
    monkeypatch.setattr("zllm.backend.oracle.mla_ops.GATHERED", gathered)
    bench = Bench()
    (index,) = bench.backend.caches["index"].arrays
    index[:] = bench.random(*index.shape)
    numbers = attend(bench, SELECT)
    chosen = bench.results["select.0"].view(np.int32)
    visible = [np.zeros((count, first + count), np.bool_) for first, count in PIECES]
    for sees, rows in zip(visible, split(chosen), strict=True):
        for mask, positions in zip(sees, rows, strict=True):
            mask[positions[positions >= 0]] = True
    expected = wanted(bench, numbers[:, :18], numbers[:, 18:26], visible)
    found = bench.results["attend_latent.0"]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    unread = 0
    (latents,) = bench.backend.caches["latent"].arrays
    for sees, (first, _), pages in zip(visible, PIECES, PAGES, strict=True):
        for position in np.flatnonzero(~sees.any(axis=0)[:first]):
            latents[pages[position // 4] * 4 + position % 4] = np.nan
            unread += 1
    assert unread
    attend(bench, SELECT)
    assert np.isfinite(bench.results["attend_latent.0"]).all()


@pytest.mark.parametrize("scored", [1, 1 << 21], ids=["row by row", "all at once"])
def test_a_selection_does_not_depend_on_blocks(
    scored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zllm.backend.oracle.dsa_ops.SCORED", scored)
    bench = Bench()
    (index,) = bench.backend.caches["index"].arrays
    index[:] = bench.random(*index.shape)
    cached = index.copy()
    numbers = attend(bench, SELECT)
    q, head_weights, k = numbers[:, 26:34], numbers[:, 34:36], numbers[:, 36:]
    chosen = bench.results["select.0"].view(np.int32)
    row = 0
    for (first, count), pages in zip(PIECES, PAGES, strict=True):
        slots = [pages[at // 4] * 4 + at % 4 for at in range(first)]
        keys = np.concatenate([cached[slots], k[row : row + count]]).astype(np.float64)
        for position in range(first, first + count):
            hits = np.maximum(keys @ q[row].reshape(2, 4).T.astype(np.float64), 0)
            scores = (hits @ head_weights[row])[: position + 1]
            best = sorted(np.argsort(-scores, kind="stable")[:3].tolist())
            assert chosen[row].tolist() == best + [-1] * (3 - len(best))
            row += 1
