"""rope_append and attend against their references, over a paged cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import PAGE_SLOTS, Bench, assert_close
from zllm import rope
from zllm.attention import gqa
from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import LONG, PlanKey, Weight
from zllm.backend.webgpu.device import Buffer
from zllm.backend.webgpu.store import Dtype, dtype_of
from zllm.kv_cache.spec import KvSpec
from zllm.rope import RopeSpec

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: rope 1e-7, attend 4e-7, and 2e-6 with scores of ±40. Seeded
# faults seen to fail: one position too many or too few, a page of another sequence, no last split,
# a sink in every split, of another head, the sums of a split that saw nothing, halves swapped.
TOLERANCE = 5e-6
PAGES = 12
CONTEXT = 40

# heads, kv heads, head size, rotated, interleaved
HEADS = {
    "grouped": GqaSpec(6, 2, 8, 8**-0.5, 8),
    "interleaved": GqaSpec(3, 1, 16, 0.3, 16, interleaved=True),
    "partly-rotated": GqaSpec(4, 4, 20, 0.2, 12),
    "largest": GqaSpec(2, 1, 256, 1 / 16, 256),
    "window": GqaSpec(4, 2, 8, 8**-0.5, 8, window=16),
    "nine-to-one": GqaSpec(18, 2, 24, 0.2, 24),
}
DTYPES: list[Dtype] = ["f32", "f16"]


def fits(spec: GqaSpec, dtype: Dtype) -> bool:
    """Whether the backend keeps keys of this head size so."""
    return dtype_of(KvSpec(spec.kv_heads, spec.head_size), dtype) == dtype


CACHED = [
    pytest.param(spec, dtype, id=f"{name}-{dtype}")
    for name, spec in HEADS.items()
    for dtype in DTYPES
    if fits(spec, dtype)
]


@pytest.mark.parametrize("long", [False, True], ids=["", "two-parts"])
@pytest.mark.parametrize(("spec", "dtype"), CACHED)
def test_rope_append(
    plain_bench: Bench, rng: np.random.Generator, spec: GqaSpec, dtype: Dtype, long: bool
) -> None:
    """Five rows, the last two of them padding: the cache may not change for those."""
    bench, rows, valid = plain_bench, 5, 3
    q_width, kv_width = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    x = rng.standard_normal((rows, q_width + 2 * kv_width)).astype(np.float32)
    q, k, v = np.split(x, [q_width, q_width + kv_width], axis=1)
    divisors = tuple(np.linspace(2, 5, spec.rotated // 2)) if long else ()
    table = rope.table(RopeSpec(spec.rotated, 10000.0, long_divisors=divisors), CONTEXT)
    positions, slots = np.array([7, 39, 0, 0, 0]), np.array([9, 30, 4, 0, 0])
    held = np.full((2, PAGES * PAGE_SLOTS, spec.kv_heads, spec.head_size), np.nan, np.float32)
    bench.plan(
        PlanKey(rows, 1, CONTEXT, "none"),
        pages=PAGES,
        valid_rows=[valid],
        position=positions,
        flags=[LONG],
        full_row_slot=slots,
    )
    cache = bench.cache(held[0], held[1], dtype)
    joined = bench.parts(rows, (q_width, kv_width, kv_width))
    bench.fill(joined, x)
    out = bench.output(rows, q_width, gap=4, guard=4)
    bench.vector(table, "rope")
    angles = Weight("rope", table.shape, (CONTEXT, CONTEXT) if long else (CONTEXT,))
    bench.run("rope_append", (*joined, cache, angles), (out,), spec)

    turns = table[positions + CONTEXT * long]

    def turned(part: NDArray[np.float32]) -> NDArray[np.float32]:
        heads = part.reshape(rows, -1, spec.head_size)
        rotated = rope.rotate(heads, turns, interleaved=spec.interleaved)
        return rotated[:valid]

    keys, stored = bench.store(cache).buffers
    held[0, slots[:valid]] = turned(k)
    held[1, slots[:valid]] = v.reshape(rows, -1, spec.head_size)[:valid]
    assert_close(bench.values(out)[:valid], turned(q).reshape(valid, -1), TOLERANCE)
    for buffer, expected in ((keys, held[0]), (stored, held[1])):
        got = numbers(bench, buffer, dtype).reshape(expected.shape)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        ulp = 2.0**-10 if dtype == "f16" else 0
        np.testing.assert_allclose(got, expected, rtol=ulp, atol=TOLERANCE * 4)


def numbers(bench: Bench, buffer: Buffer, dtype: Dtype) -> NDArray[np.float32]:
    stored = np.float16 if dtype == "f16" else np.float32
    return bench.read(buffer, stored).astype(np.float32)


def test_halves_hold_what_is_too_large(plain_bench: Bench) -> None:
    """Beyond f16 becomes its largest; NaN and infinity stay visible."""
    bench, spec = plain_bench, GqaSpec(1, 1, 8, 1.0, 0)
    bench.plan(PlanKey(1, 1, CONTEXT, "none"), pages=2, full_row_slot=[5])
    row = np.array([[7e4, -1e30, 65504, 65519, 1e-8, np.nan, np.inf, -2]], np.float32)
    cache = bench.cache(*np.zeros((2, 8, 1, 8), np.float32), "f16")
    operands = (bench.input(row), bench.input(row), bench.input(row), cache)
    angles = bench.vector(np.ones(1, np.float32), "rope")
    bench.run("rope_append", (*operands, angles), (bench.output(1, 8),), spec)

    for buffer in bench.store(cache).buffers:
        got = numbers(bench, buffer, "f16").reshape(8, 8)
        np.testing.assert_allclose(got[5, :5], [65504, -65504, 65504, 65504, 0], atol=1e-7)
        assert np.isnan(got[5, 5:7]).all() and got[5, 7] == -2
        assert not got[[0, 1, 2, 3, 4, 6, 7]].any()


def expected_rows(
    q: NDArray[np.float32],
    kv: NDArray[np.float32],
    spec: GqaSpec,
    sinks: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """The last rows of a sequence: q [T, H·K]; kv [2, S, G, K]."""
    length, rows = kv.shape[1], len(q)
    positions = length - rows + np.arange(rows)
    ages = positions[:, None] - np.arange(length)
    visible = (ages >= 0) & (ages < (spec.window or length))
    heads = q.reshape(rows, spec.heads, spec.head_size)
    k, v = kv.transpose(0, 2, 1, 3)
    return gqa.attend(heads, k, v, visible, spec, sinks=sinks).reshape(rows, -1)


def stored_values(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Dtype
) -> NDArray[np.float32]:
    """Random numbers that a cache of `dtype` holds exactly."""
    values = rng.standard_normal(shape).astype(np.float32)
    return values.astype(np.float16).astype(np.float32) if dtype == "f16" else values


@pytest.mark.parametrize(
    ("new", "sunk"),
    [((1, 3, 2), False), ((1, 20, 2), True), ((1, 1, 1), False), ((1, 1, 1), True)],
    ids=["append", "prefill-sinks", "decode", "decode-sinks"],
)
@pytest.mark.parametrize(("spec", "dtype"), CACHED)
def test_attend(
    bench: Bench,
    rng: np.random.Generator,
    spec: GqaSpec,
    dtype: Dtype,
    new: tuple[int, int, int],
    sunk: bool,
) -> None:
    """Three sequences with scattered pages, and a padding row.

    Their last rows are new: one decodes, one appends, one begins; or all decode.
    """
    lengths = (17, 22, 2)
    rows = sum(new) + 1
    seqs = rows if max(new) == 1 else 3
    pages = rng.permutation(np.arange(1, 16))
    entries = -(-CONTEXT // PAGE_SLOTS)
    table = np.zeros((seqs, entries), np.int32)
    table[0, :5], table[1, :6], table[2, :1] = pages[:5], pages[5:11], pages[11:12]
    cache = np.full((2, 16 * PAGE_SLOTS, spec.kv_heads, spec.head_size), np.nan, np.float32)
    q = rng.standard_normal((rows, spec.heads * spec.head_size)).astype(np.float32)
    expected = np.empty_like(q[:-1])
    sinks = rng.standard_normal(spec.heads).astype(np.float32) * np.float32(3) if sunk else None
    row = 0
    for seq, (count, length) in enumerate(zip(new, lengths, strict=True)):
        kv = stored_values(rng, (2, length, spec.kv_heads, spec.head_size), dtype)
        p = np.arange(length)
        cache[:, table[seq, p // PAGE_SLOTS] * PAGE_SLOTS + p % PAGE_SLOTS] = kv
        expected[row : row + count] = expected_rows(q[row : row + count], kv, spec, sinks)
        row += count
    last = zip(new, lengths, strict=True)
    positions = [p for count, length in last for p in range(length - count, length)]
    bench.plan(
        PlanKey(rows, seqs, CONTEXT, "none"),
        pages=16,
        valid_rows=[rows - 1],
        seq=np.repeat([0, 1, 2, 0], [*new, 1]),
        position=[*positions, 0],
        full_table=table,
    )
    out = bench.output(rows, q.shape[1], gap=4, guard=8)
    kv_cache = bench.cache(cache[0], cache[1], dtype)
    more = () if sinks is None else (bench.vector(sinks, "sinks"),)
    bench.run("attend", (bench.input(q, offset=4, gap=8), kv_cache, *more), (out,), spec)

    assert_close(bench.values(out)[:-1], expected, TOLERANCE)


@pytest.mark.parametrize("window", [0, 601], ids=["", "window"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 37], ids=["decode", "append"])
@pytest.mark.parametrize("length", [1500, 90], ids=["all-splits", "some-splits-empty"])
def test_attend_over_a_long_context(
    bench: Bench, rng: np.random.Generator, length: int, rows: int, dtype: Dtype, window: int
) -> None:
    """GPUs deal the positions to several workgroups. Scores of ±40 test the running maximum."""
    spec = replace(HEADS["grouped"], window=window)
    sinks = np.linspace(-5, 50, spec.heads, dtype=np.float32)
    context = 1504
    pages = context // PAGE_SLOTS + 1
    kv = stored_values(rng, (2, pages * PAGE_SLOTS, spec.kv_heads, spec.head_size), dtype)
    kv[:, PAGE_SLOTS + length :] = np.nan
    q = rng.standard_normal((rows, spec.heads * spec.head_size)).astype(np.float32) * np.float32(9)
    bench.plan(
        PlanKey(rows, 1, context, "none"),
        pages=pages,
        position=np.arange(length - rows, length),
        full_table=np.arange(1, pages),
    )
    out = bench.output(rows, q.shape[1], guard=4)
    operands = (bench.input(q), bench.cache(kv[0], kv[1], dtype), bench.vector(sinks, "sinks"))
    bench.run("attend", operands, (out,), spec)

    own = kv[:, PAGE_SLOTS : PAGE_SLOTS + length]
    assert_close(bench.values(out), expected_rows(q, own, spec, sinks), TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attend_over_more_than_a_software_adapter_goes_round(
    bench: Bench, rng: np.random.Generator, dtype: Dtype
) -> None:
    """Without splits llvmpipe ends the loop over 9,000 keys of 256 numbers early, silently."""
    spec, length = HEADS["largest"], 9000
    pages = length // PAGE_SLOTS + 1
    kv = stored_values(rng, (2, pages * PAGE_SLOTS, spec.kv_heads, spec.head_size), dtype)
    q = rng.standard_normal((1, spec.heads * spec.head_size)).astype(np.float32)
    bench.plan(
        PlanKey(1, 1, length, "none"),
        pages=pages,
        position=[length - 1],
        full_table=np.arange(1, pages),
    )
    out = bench.output(1, q.shape[1], guard=4)
    bench.run("attend", (bench.input(q), bench.cache(kv[0], kv[1], dtype)), (out,), spec)

    own = kv[:, PAGE_SLOTS : PAGE_SLOTS + length]
    assert_close(bench.values(out), expected_rows(q, own, spec), TOLERANCE)
