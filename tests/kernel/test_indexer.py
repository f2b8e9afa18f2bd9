"""index_append and select against zllm.attention.dsa and kpool, over a paged cache.

Seeded faults seen to fail: ape in reverse, tokens of another sequence taken for this round's.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import PAGE_SLOTS, Bench
from zllm.attention import dsa, kpool
from zllm.attention.dsa import SelectSpec
from zllm.backend.contract import PlanKey, Value

pytestmark = pytest.mark.vulkan

F32 = NDArray[np.float32]
PAGES = 16
CONTEXT = 40
# Sequences on scattered pages: one decodes, one appends, one begins; then a padding row.
NEW, LENGTHS = (1, 6, 3), (20, 23, 3)
SEQS = np.repeat([0, 1, 2, 0], [*NEW, 1])
POSITIONS = np.array([19, *range(17, 23), *range(3), 0])
VALID = len(SEQS) - 1


def plan(bench: Bench, rng: np.random.Generator) -> NDArray[np.int64]:
    """Slots [3, CONTEXT] of the sequences' positions; those beyond a sequence are scratch."""
    pages = rng.permutation(np.arange(1, PAGES))
    table = np.zeros((3, CONTEXT // PAGE_SLOTS), np.int64)
    table[0, :5], table[1, :6], table[2, :1] = pages[:5], pages[5:11], pages[11:12]
    slots = (table[:, :, None] * PAGE_SLOTS + np.arange(PAGE_SLOTS)).reshape(3, -1)
    bench.plan(
        PlanKey(len(SEQS), 3, CONTEXT, "none"),
        pages=PAGES,
        valid_rows=[VALID],
        seq=SEQS,
        position=POSITIONS,
        first_row=np.cumsum([0, *NEW[:-1]]),
        full_table=table,
        full_row_slot=np.where(np.arange(len(SEQS)) < VALID, slots[SEQS, POSITIONS], 0),
    )
    return slots


def past(rng: np.random.Generator, slots: NDArray[np.int64], size: int) -> F32:
    """Numbers in the slots of tokens before this round, NaN in all others."""
    held = np.full((PAGES * PAGE_SLOTS, size), np.nan, np.float32)
    for own, count, length in zip(slots, NEW, LENGTHS, strict=True):
        old = own[: length - count]
        held[old] = rng.standard_normal((len(old), size)).astype(np.float32)
    return held


def test_keys_alone(plain_bench: Bench, rng: np.random.Generator) -> None:
    bench = plain_bench
    slots = plan(bench, rng)
    held, k = past(rng, slots, 9), rng.standard_normal((len(SEQS), 9)).astype(np.float32)
    cache = bench.store_of("index", (held,))
    bench.run("index_append", (bench.input(k, offset=1, gap=2), cache, None, None))

    held[slots[SEQS, POSITIONS][:VALID]] = k[:VALID]
    (keys,) = bench.store(cache).buffers
    np.testing.assert_array_equal(bench.read(keys).reshape(held.shape), held)


@pytest.mark.parametrize("pool", [2, 3, 7])
def test_pools(plain_bench: Bench, rng: np.random.Generator, pool: int) -> None:
    """Pools that begin in an earlier round, that lie within this one, and that stay open."""
    bench, size = plain_bench, 70
    slots = plan(bench, rng)
    keys, gates = past(rng, slots, size), past(rng, slots, size) * np.float32(4)
    pools = np.full_like(keys, np.nan)
    k, gate = rng.standard_normal((2, len(SEQS), size)).astype(np.float32)
    ape = rng.standard_normal((pool, size)).astype(np.float32)
    cache = bench.store_of("index", (keys, gates, pools))
    operands = (bench.input(k, gap=3), cache, bench.input(gate, offset=5), bench.vector(ape))
    bench.run("index_append", operands)

    where = slots[SEQS, POSITIONS][:VALID]
    keys[where], gates[where] = k[:VALID], gate[:VALID]
    for own, count, length in zip(slots, NEW, LENGTHS, strict=True):
        members = own[kpool.closed_by(length - count, count, pool)]
        pools[members[:, -1]] = kpool.pool_keys(keys[members], gates[members], ape)
    written = [bench.read(b).reshape(keys.shape) for b in bench.store(cache).buffers]
    np.testing.assert_array_equal(written[0], keys)
    np.testing.assert_array_equal(written[1], gates)
    np.testing.assert_array_equal(np.isnan(written[2]), np.isnan(pools))
    np.testing.assert_allclose(written[2], pools, rtol=0, atol=1e-5)
    assert np.isfinite(pools).any()


# heads, size, chosen, pool, tail
SELECTIONS = {
    "keys": SelectSpec(3, 16, 5),
    "one": SelectSpec(1, 4, 1),
    "all-keys": SelectSpec(2, 8, 64),
    "pools": SelectSpec(3, 16, 8, 4),
    "pools-and-tail": SelectSpec(3, 16, 9, 3, tail=True),
    "all-pools-and-tail": SelectSpec(2, 16, 40, 4, tail=True),
}


@pytest.mark.parametrize("levels", [False, True], ids=["", "levels"])
@pytest.mark.parametrize("spec", SELECTIONS.values(), ids=SELECTIONS)
def test_select(bench: Bench, rng: np.random.Generator, spec: SelectSpec, levels: bool) -> None:
    """levels: small integers make many scores equal, and exact in any order of their sums."""
    slots = plan(bench, rng)

    def drawn(*shape: int) -> F32:
        found = rng.integers(-1, 2, shape) if levels else rng.standard_normal(shape)
        return found.astype(np.float32)

    q, head_weights = drawn(len(SEQS), spec.heads * spec.size), drawn(len(SEQS), spec.heads)
    arrays = [np.full((PAGES * PAGE_SLOTS, spec.size), np.nan, np.float32)]
    if spec.pool > 1:
        arrays = [arrays[0], arrays[0], arrays[0].copy()]
    keys = []
    for own, length in zip(slots, LENGTHS, strict=True):
        keys.append(drawn(length // spec.pool, spec.size))
        arrays[-1][own[: length // spec.pool * spec.pool][spec.pool - 1 :: spec.pool]] = keys[-1]
    out = bench.output(len(SEQS), spec.width, gap=3)
    operands = (bench.input(q, gap=4), bench.input(head_weights, offset=1))
    bench.run("select", (*operands, bench.store_of("index", arrays)), (out,), spec)

    assert bench.untouched([out])
    np.testing.assert_array_equal(chosen(bench, out), wanted(spec, q, head_weights, keys))
    assert np.isnan(bench.values(out)[VALID:]).all()


def test_a_long_context(bench: Bench, rng: np.random.Generator) -> None:
    """More keys than eight threads of a software adapter get through."""
    context, spec = 1 << 18, SelectSpec(1, 4, 50)
    pages = 1 + rng.permutation(context // PAGE_SLOTS)
    key = PlanKey(1, 1, context, "none")
    bench.plan(key, pages=len(pages) + 1, position=[context - 1], full_table=pages)
    q, weights = rng.standard_normal((1, 4)).astype(np.float32), np.ones((1, 1), np.float32)
    held = rng.standard_normal((PAGE_SLOTS * (len(pages) + 1), 4)).astype(np.float32)
    out = bench.output(1, spec.width)
    cache = bench.store_of("index", (held,))
    bench.run("select", (bench.input(q), bench.input(weights), cache), (out,), spec)
    keys = held.reshape(-1, PAGE_SLOTS, 4)[pages].reshape(-1, 4)
    scores = np.maximum(keys @ q[0], 0)
    expected = np.sort(np.argsort(-scores, kind="stable")[: spec.width])
    np.testing.assert_array_equal(bench.values(out).view(np.int32)[0], expected)


def chosen(bench: Bench, out: Value) -> NDArray[np.int32]:
    return bench.values(out).view(np.int32)[:VALID]


def wanted(spec: SelectSpec, q: F32, head_weights: F32, keys: list[F32]) -> NDArray[np.int32]:
    """As the reference chooses, row by row."""
    choose = dsa.select if spec.pool == 1 else kpool.select
    heads = q.reshape(len(q), spec.heads, spec.size)
    rows = [
        choose(
            heads[r : r + 1],
            head_weights[r : r + 1],
            keys[SEQS[r]][: (POSITIONS[r] + 1) // spec.pool],
            POSITIONS[r : r + 1],
            spec,
        )
        for r in range(VALID)
    ]
    return np.concatenate(rows)
