"""latent_append and attend_latent against their references, over a paged cache.

Seeded faults seen to fail: a key too few, splits that forget their maxima, keys unfolded as values,
every tile of rows reading the queries of the first, a slice's total left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import PAGE_SLOTS, Bench, assert_close, random_blocks
from zllm.attention import mla
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import PlanKey, Value
from zllm.backend.webgpu import latent
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

TOLERANCE = 5e-6
PAGES = 12
CONTEXT = 40
SPECS = {
    "plain": MlaSpec(4, 12, 8, 10, 20, 0.3),
    "not-rotated": MlaSpec(3, 7, 0, 5, 24, 0.2),
    "many-heads": MlaSpec(35, 5, 4, 3, 132, 0.1),
    "largest": MlaSpec(2, 40, 4, 4, 512, 0.02),
}


@pytest.mark.parametrize("turned", [0, 3], ids=["", "rotated"])
def test_latent_append(plain_bench: Bench, rng: np.random.Generator, turned: int) -> None:
    """Seven rows, the last two of them padding: the cache may not change for those."""
    bench, rows, valid, rank = plain_bench, 7, 5, 21
    c = rng.standard_normal((rows, rank)).astype(np.float32)
    k_rope = rng.standard_normal((rows, turned)).astype(np.float32)
    slots = np.array([9, 30, 4, 5, 17, 0, 0])
    held = np.full((PAGES * PAGE_SLOTS, rank + turned), np.nan, np.float32)
    bench.plan(PlanKey(rows, 1, 40, "none"), pages=PAGES, valid_rows=[valid], full_row_slot=slots)
    cache = bench.store_of("latent", (held,))
    part = bench.input(k_rope, offset=2, gap=1) if turned else None
    bench.run("latent_append", (bench.input(c, offset=3, gap=2), part, cache))

    held[slots[:valid]] = np.concatenate([c, k_rope], axis=1)[:valid]
    (latents,) = bench.store(cache).buffers
    np.testing.assert_array_equal(bench.read(latents).reshape(held.shape), held)


@pytest.fixture(params=["few-keys", "many-keys"])
def shape(request: pytest.FixtureRequest, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both shapes of a GPU meet all tests, whatever the number of keys; others have one."""
    if request.param == "many-keys":
        monkeypatch.setattr(latent, "MOST_FEW_KEYS", 0)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's matrix on the bench, and its values."""

    spec: MlaSpec
    format: str
    stored: NDArray[np.uint8]

    @classmethod
    def random(cls, rng: np.random.Generator, spec: MlaSpec, format: str) -> Layer:
        rows = spec.heads * (spec.nope + spec.value)
        return cls(spec, format, random_blocks(rng, format, rows, spec.rank))

    def run(self, bench: Bench, q: F32, cache: F32, chosen: I32 | None) -> Value:
        kv_b = bench.matrix((self.format, self.stored), columns=self.spec.rank)
        out = bench.output(len(q), self.spec.heads * self.spec.value, gap=3)
        # Positions as bits of floats, as no value has a type on the bench.
        bits = None if chosen is None else bench.input(chosen.view(np.float32), offset=1, gap=2)
        ins = (bench.input(q, offset=3, gap=1), kv_b, bench.store_of("latent", (cache,)), bits)
        bench.run("attend_latent", ins, (out,), self.spec)
        assert bench.untouched([out])
        return out

    def expected(self, q: F32, seen: F32, position: int, chosen: I32 | None) -> F32:
        """A row q [H·(n+r)] over the latents of its sequence."""
        weights = formats.decode(self.format, self.stored, self.spec.rank)
        query = q.reshape(1, self.spec.heads, -1)
        if chosen is None:
            own = seen[: position + 1]
            return mla.attend_absorbed(query, own, weights, None, self.spec).reshape(-1)
        picked = seen[np.maximum(chosen, 0)][None]
        return mla.attend_chosen(query, picked, weights, chosen[None] >= 0, self.spec).reshape(-1)


def choice(rng: np.random.Generator, position: int, width: int) -> I32:
    """Ascending positions up to a row's own, -1 padded."""
    count = min(width, max(1, (position + 1) * 2 // 3))
    found = np.full(width, -1, np.int32)
    found[:count] = np.sort(rng.choice(position + 1, count, replace=False))
    return found


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "chosen"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_attend_latent(bench: Bench, rng: np.random.Generator, spec: MlaSpec, sparse: bool) -> None:
    """Three sequences with scattered pages: one decodes, one appends, one begins; a padding row."""
    new, lengths = (1, 3, 2), (17, 22, 2)
    rows = sum(new) + 1
    pages = rng.permutation(np.arange(1, 16))
    table = np.zeros((3, -(-CONTEXT // PAGE_SLOTS)), np.int32)
    table[0, :5], table[1, :6], table[2, :1] = pages[:5], pages[5:11], pages[11:12]
    width = spec.rank + spec.rotated
    cache = np.full((16 * PAGE_SLOTS, width), np.nan, np.float32)
    q = rng.standard_normal((rows, spec.heads * (spec.nope + spec.rotated))).astype(np.float32)
    layer = Layer.random(rng, spec, "f32")
    seqs, positions = np.repeat([0, 1, 2, 0], [*new, 1]), np.array([16, 19, 20, 21, 0, 1, 0])
    chosen = np.stack([choice(rng, p, 9) for p in positions]) if sparse else None
    if chosen is not None:
        chosen[4] = -1  # sees nothing: zeros
    seen = []
    for seq, length in enumerate(lengths):
        latents = rng.standard_normal((length, width)).astype(np.float32)
        p = np.arange(length)
        cache[table[seq, p // PAGE_SLOTS] * PAGE_SLOTS + p % PAGE_SLOTS] = latents
        seen.append(latents)
    bench.plan(
        PlanKey(rows, 3, CONTEXT, "none"),
        pages=16,
        valid_rows=[rows - 1],
        seq=seqs,
        position=positions,
        full_table=table,
    )
    out = layer.run(bench, q, cache, chosen)

    expected = np.stack(
        [
            layer.expected(q[r], seen[seqs[r]], positions[r], None if chosen is None else chosen[r])
            for r in range(rows - 1)
        ]
    )
    assert_close(bench.values(out)[:-1], expected, TOLERANCE)


@pytest.mark.parametrize("format", ["f16", "q4_0", "q4_k"])
@pytest.mark.parametrize("rows", [1, 11])
def test_packed_matrix(bench: Bench, rng: np.random.Generator, format: str, rows: int) -> None:
    """More rows than a workgroup of any shape takes."""
    spec = MlaSpec(2, 37, 4, 13, 256, 0.01)
    layer = Layer.random(rng, spec, format)
    positions = 5 + np.arange(rows)
    pages = 5
    latents = rng.standard_normal((PAGE_SLOTS * (pages - 1), 260)).astype(np.float32)
    cache = np.concatenate([np.full((PAGE_SLOTS, 260), np.nan, np.float32), latents])
    q = rng.standard_normal((rows, 2 * 41)).astype(np.float32)
    bench.plan(
        PlanKey(rows, 1, 16, "none"), pages=pages, position=positions, full_table=np.arange(1, 5)
    )
    out = layer.run(bench, q, cache, None)

    expected = [layer.expected(q[r], latents, p, None) for r, p in enumerate(positions)]
    assert_close(bench.values(out), np.stack(expected), TOLERANCE)


@pytest.mark.usefixtures("shape")
def test_rows_take_turns(
    bench: Bench, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows at a time, the last of seven being padding; keys of a row in several splits."""
    spec, rows, length = MlaSpec(3, 6, 4, 5, 8, 0.5), 7, 1030
    splits = latent.split_count(spec, rows, 1040, bench.info)
    monkeypatch.setattr(latent, "SCRATCH_BYTES", 3 * 4 * 3 * 12 * splits)
    layer = Layer.random(rng, spec, "f32")
    pages = 1040 // PAGE_SLOTS
    latents = rng.standard_normal((PAGE_SLOTS * pages, 12)).astype(np.float32)
    cache = np.concatenate([np.full((PAGE_SLOTS, 12), np.nan, np.float32), latents])
    q = rng.standard_normal((rows, 3 * 10)).astype(np.float32)
    positions = length + np.arange(rows)
    bench.plan(
        PlanKey(rows, 1, 1040, "none"),
        pages=pages + 1,
        valid_rows=[rows - 1],
        position=positions,
        full_table=np.arange(1, pages + 1),
    )
    out = layer.run(bench, q, cache, None)

    expected = [layer.expected(q[r], latents, positions[r], None) for r in range(rows - 1)]
    assert_close(bench.values(out)[:-1], np.stack(expected), TOLERANCE)


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "chosen"])
@pytest.mark.parametrize("length", [1500, 90], ids=["all-splits", "some-splits-empty"])
def test_attend_latent_over_a_long_context(
    bench: Bench, rng: np.random.Generator, length: int, sparse: bool
) -> None:
    """GPUs deal the keys to several workgroups. Scores of ±40 test the running maximum."""
    spec = MlaSpec(18, 9, 4, 6, 64, 1.5)
    context = 1504
    pages = context // PAGE_SLOTS + 1
    cache = rng.standard_normal((pages * PAGE_SLOTS, 68)).astype(np.float32)
    q = rng.standard_normal((1, 18 * 13)).astype(np.float32)
    layer = Layer.random(rng, spec, "f32")
    chosen = choice(rng, length - 1, 700)[None] if sparse else None
    bench.plan(
        PlanKey(1, 1, context, "none"),
        pages=pages,
        position=[length - 1],
        full_table=np.arange(1, pages),
    )
    out = layer.run(bench, q, cache, chosen)

    row = layer.expected(
        q[0], cache[PAGE_SLOTS:], length - 1, None if chosen is None else chosen[0]
    )
    assert_close(bench.values(out), row[None], TOLERANCE)
