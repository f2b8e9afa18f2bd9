"""Compressed attention, its entries and their choice against zllm.attention.compressed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import PAGE_SLOTS, Bench, assert_close, random_blocks
from zllm import norm, rope
from zllm.attention import compressed, dsa, kpool
from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.contract import PlanKey
from zllm.backend.webgpu import selection
from zllm.linear import GroupedLinearSpec
from zllm.norm import UnitNormSpec
from zllm.quant import formats
from zllm.rope import RopeSpec

pytestmark = pytest.mark.vulkan

# Of the largest result; a choice is exact. Seeded faults seen to fail: this round's token read from
# the cache, halves of overlapping windows swapped, one tie too many, a head left out, an entry seen
# a token early, a sink in every split, a bank's rows counted from the matrix's first.
TOLERANCE = 3e-6
F32 = NDArray[np.float32]


@dataclass
class Sequences:
    """Sequences on scattered pages; the last rows of each are new, and one row is padding."""

    new: tuple[int, ...]
    lengths: tuple[int, ...]
    context: int
    table: NDArray[np.int32]
    pages: int

    @classmethod
    def of(
        cls, rng: np.random.Generator, new: tuple[int, ...], lengths: tuple[int, ...], context: int
    ) -> Sequences:
        counts = [-(-length // PAGE_SLOTS) for length in lengths]
        pages = rng.permutation(np.arange(1, sum(counts) + 1))
        table = np.zeros((len(new), -(-context // PAGE_SLOTS)), np.int32)
        for seq, own in enumerate(np.split(pages, np.cumsum(counts)[:-1])):
            table[seq, : len(own)] = own
        return cls(new, lengths, context, table, sum(counts) + 1)

    @property
    def rows(self) -> int:
        """Without the padding."""
        return sum(self.new)

    @property
    def slots(self) -> int:
        return self.pages * PAGE_SLOTS

    def at(self, seq: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.table[seq, positions // PAGE_SLOTS] * PAGE_SLOTS + positions % PAGE_SLOTS

    def spans(self) -> list[tuple[int, slice, NDArray[np.int64]]]:
        """(sequence, its rows, their positions)."""
        found, row = [], 0
        for seq, (count, length) in enumerate(zip(self.new, self.lengths, strict=True)):
            found.append((seq, slice(row, row + count), np.arange(length - count, length)))
            row += count
        return found

    def plan(self, bench: Bench) -> None:
        words: dict[str, list[int]] = {"seq": [], "position": [], "full_row_slot": []}
        for seq, _, positions in self.spans():
            words["seq"] += [seq] * len(positions)
            words["position"] += positions.tolist()
            words["full_row_slot"] += self.at(seq, positions).tolist()
        bench.plan(
            PlanKey(self.rows + 1, len(self.new), self.context, "none"),
            pages=self.pages,
            valid_rows=[self.rows],
            first_row=[rows.start for _, rows, _ in self.spans()],
            full_table=self.table,
            **words,
        )


def numbers(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("size", "runs"), [(16, 1), (7, 5), (300, 3)])
def test_unit_norm(bench: Bench, rng: np.random.Generator, size: int, runs: int) -> None:
    x = numbers(rng, 3, size * runs)
    out = bench.output(3, size * runs, gap=3)
    bench.run("unit_norm", (bench.input(x, offset=1, gap=2),), (out,), UnitNormSpec(size, 1e-5))

    expected = norm.unit_norm(x.reshape(3, runs, size), UnitNormSpec(size, 1e-5))
    assert bench.untouched([out])
    assert_close(bench.values(out), expected.reshape(3, -1), TOLERANCE)


COMPRESSORS = {
    "alone": CompressorSpec(8, 16, False, 8, 1e-4),
    "overlapping": CompressorSpec(4, 12, True, 6, 1e-6),
    "odd": CompressorSpec(3, 21, True, 2, 1e-5),
    "wide": CompressorSpec(2, 516, False, 64, 1e-5),
}


@pytest.mark.parametrize("spec", COMPRESSORS.values(), ids=COMPRESSORS)
def test_compress_append(bench: Bench, rng: np.random.Generator, spec: CompressorSpec) -> None:
    """One sequence decodes and closes a window, one appends across several, one begins, one
    closes nothing."""
    m = spec.rate
    sequences = Sequences.of(rng, (1, 2 * m + 1, m + 1, 1), (2 * m, 3 * m + 2, m + 1, m + 1), 64)
    table = rope.table(RopeSpec(spec.rotated, 1000.0), 64)
    ape, weight = numbers(rng, m, spec.width), numbers(rng, spec.size)
    x = numbers(rng, sequences.rows + 1, 2 * spec.width)
    x[:, spec.width :] *= 4
    held = [
        np.full((sequences.slots, width), np.nan, np.float32)
        for width in (spec.width, spec.width, spec.size)
    ]
    for seq, _, positions in sequences.spans():
        old = sequences.at(seq, np.arange(positions[0]))
        held[0][old], held[1][old] = numbers(rng, 2, len(old), spec.width)
    sequences.plan(bench)
    cache = bench.store_of("entries", held)
    kv, gate = bench.parts(len(x), (spec.width, spec.width))
    bench.fill((kv, gate), x)
    weights = (
        bench.vector(ape.reshape(-1), "ape"),
        bench.vector(weight, "norm"),
        bench.vector(table.reshape(-1), "rope"),
    )
    bench.run("compress_append", (kv, gate, cache, *weights), (), spec)

    for seq, rows, positions in sequences.spans():
        slots = sequences.at(seq, positions)
        held[0][slots], held[1][slots] = np.split(x[rows], 2, axis=1)
        closed = kpool.closed_by(int(positions[0]), len(positions), m)
        read = compressed.read_by(closed, spec)
        where = sequences.at(seq, np.maximum(read, 0))
        made = compressed.entries(
            (held[0][where], held[1][where]), read, (ape, weight), table[closed[:, 0]], spec
        )
        held[2][sequences.at(seq, closed[:, -1])] = made
    for buffer, expected in zip(bench.store(cache).buffers, held, strict=True):
        got = bench.read(buffer).reshape(expected.shape)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        assert_close(np.nan_to_num(got), np.nan_to_num(expected), TOLERANCE)


def run_select(
    bench: Bench,
    rng: np.random.Generator,
    sequences: Sequences,
    spec: SelectEntriesSpec,
    *,
    levels: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(got, expected) of all rows but the padding. levels: few different scores."""
    heads, size = spec.index.heads, spec.index.size
    q = numbers(rng, sequences.rows + 1, heads * size)
    head_weights = numbers(rng, sequences.rows + 1, heads)
    held = np.full((sequences.slots, size), np.nan, np.float32)
    expected = np.empty((sequences.rows, spec.index.top_k), np.int32)
    if levels:  # and zeros of both signs
        q, head_weights = np.sign(q), np.sign(head_weights)
    for seq, rows, positions in sequences.spans():
        count = int(compressed.complete(positions[-1:], spec.rate)[0])
        keys = numbers(rng, count, size)
        if levels:
            keys = np.sign(keys) * (rng.random((count, 1)) < 0.4)
        keys = keys.astype(np.float32)
        held[sequences.at(seq, np.arange(1, count + 1) * spec.rate - 1)] = keys
        own = q[rows].reshape(-1, heads, size)
        expected[rows] = compressed.select(own, head_weights[rows], keys, positions, spec)
    sequences.plan(bench)
    raw = np.full((1, 1), np.nan, np.float32)
    cache = bench.store_of("index", (raw, raw, held))
    out = bench.output(len(q), spec.index.top_k, gap=3)
    operands = (bench.input(q, gap=4), bench.input(head_weights, offset=1), cache)
    bench.run("select_entries", operands, (out,), spec)

    assert bench.untouched([out])
    values = bench.values(out)
    assert np.isnan(values[-1]).all()
    return values.view(np.int32)[:-1], expected


# heads, size, chosen, rate
SELECTIONS = {
    "small": SelectEntriesSpec(SelectSpec(8, 12, 5), 4),
    "many-heads": SelectEntriesSpec(SelectSpec(70, 36, 17), 2),
    "one": SelectEntriesSpec(SelectSpec(1, 4, 1), 1),
    "all": SelectEntriesSpec(SelectSpec(3, 8, 300), 2),
}


@pytest.mark.parametrize("levels", [False, True], ids=["", "levels"])
@pytest.mark.parametrize("spec", SELECTIONS.values(), ids=SELECTIONS)
def test_select_entries(
    bench: Bench, rng: np.random.Generator, spec: SelectEntriesSpec, levels: bool
) -> None:
    """Sequences with more entries than a row may choose, with fewer, and with none."""
    if levels:  # a power of two under the root: scores are exact in any order
        spec = replace(spec, index=replace(spec.index, size=16))
    sequences = Sequences.of(rng, (1, 3, 9, 1), (331, 23, 9, 1), 340)
    got, expected = run_select(bench, rng, sequences, spec, levels=levels)

    np.testing.assert_array_equal(got, expected)


def test_rows_are_scored_in_blocks(
    bench: Bench, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SCORE_BYTES", 4 * 100 * 3)
    sequences = Sequences.of(rng, (7, 1), (90, 40), 100)
    spec = SelectEntriesSpec(SelectSpec(4, 8, 6), 1)
    got, expected = run_select(bench, rng, sequences, spec, levels=False)

    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("scale", [1.0, 1e-30, -1.0])
def test_scores_that_differ_in_their_last_bits(
    bench: Bench, rng: np.random.Generator, scale: float
) -> None:
    """One head and one number: the scores are the keys, of all signs and sizes."""
    spec = SelectEntriesSpec(SelectSpec(1, 4, 40), 1)
    near_one = (
        (np.float32(1).view(np.int32) + rng.permutation(900)).astype(np.int32).view(np.float32)
    )
    keys = np.zeros((900, 4), np.float32)
    keys[:, 0] = np.where(rng.random(900) < 0.5, near_one, 2.0 ** rng.integers(-20, 20, 900))
    keys[::3] = -keys[::3]  # relu makes zeros of them
    keys *= np.float32(2)
    sequences = Sequences.of(rng, (1,), (900,), 1000)
    sequences.plan(bench)
    held = np.full((sequences.slots, 4), np.nan, np.float32)
    held[sequences.at(0, np.arange(900))] = keys
    q = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    head_weights = np.array([[scale], [0]], np.float32)
    out = bench.output(2, 40)
    operands = (bench.input(q), bench.input(head_weights), bench.store_of("index", (held,)))
    bench.run("select_entries", operands, (out,), spec)

    scores = np.float32(scale) * np.maximum(keys[:, 0] * np.float32(0.5), np.float32(0))
    expected = dsa.positions(dsa.best(scores[None], np.array([900]), 40), 40)
    np.testing.assert_array_equal(bench.values(out).view(np.int32)[:1], expected)


# heads, size, window, rate, chosen of a row (0: all)
ATTENDED = {
    "window": (CompressedSpec(4, 16, 8), 0),
    "entries": (CompressedSpec(5, 16, 8, 8), 0),
    "chosen": (CompressedSpec(20, 12, 8, 4), 6),
    "largest": (CompressedSpec(3, 512, 5, 2), 0),
    "many": (CompressedSpec(33, 64, 100, 2), 50),
}


@pytest.mark.parametrize("case", ATTENDED.values(), ids=ATTENDED)
def test_attend_compressed(
    bench: Bench, rng: np.random.Generator, case: tuple[CompressedSpec, int]
) -> None:
    spec, most = case
    sequences = Sequences.of(rng, (1, 3, 2), (231, 22, 2), 240)
    q = numbers(rng, sequences.rows + 1, spec.heads * spec.size)
    sinks = numbers(rng, spec.heads) * np.float32(3)
    raw, far = np.full((2, sequences.slots, spec.size), np.nan, np.float32)
    chosen = np.full((len(q), most), -1, np.int32)
    expected = np.empty((sequences.rows, spec.heads * spec.size), np.float32)
    for seq, rows, positions in sequences.spans():
        near = np.arange(positions[-1] + 1)
        keys = numbers(rng, len(near), spec.size)
        raw[sequences.at(seq, near)] = keys
        seen = compressed.in_window(positions, near, spec.window)
        made = np.empty((0, spec.size), np.float32)
        if spec.rate:
            counts = compressed.complete(positions, spec.rate)
            made = numbers(rng, int(counts[-1]), spec.size)
            far[sequences.at(seq, np.arange(1, len(made) + 1) * spec.rate - 1)] = made
            for row, count in zip(range(rows.start, rows.stop), counts, strict=True):
                some = np.sort(rng.permutation(count)[:most])
                chosen[row, : len(some)] = some
            allowed = compressed.seen_entries(positions, chosen[rows] if most else None, spec.rate)
            seen = np.concatenate([seen, allowed], axis=1)
        heads = q[rows].reshape(-1, spec.heads, spec.size)
        result = compressed.attend(heads, keys, made, seen, spec, sinks=sinks)
        expected[rows] = result.reshape(len(result), -1)
    sequences.plan(bench)
    unread = np.full((1, 1), np.nan, np.float32)
    caches = (
        bench.store_of("raw", (raw,)),
        bench.store_of("entries", (unread, unread, far)) if spec.rate else None,
    )
    choice = bench.input(chosen.view(np.float32), offset=3, gap=1) if most else None
    out = bench.output(len(q), q.shape[1], gap=4, guard=4)
    operands = (bench.input(q, gap=4), caches[0], bench.vector(sinks), caches[1], choice)
    bench.run("attend_compressed", operands, (out,), spec)

    assert bench.untouched([out])
    values = bench.values(out)
    assert np.isnan(values[-1]).all()
    assert_close(values[:-1], expected, TOLERANCE)


# format, groups, columns and rows of a group, rows of x
GROUPED = {
    "f32-decode": ("f32", 2, 24, 12, 1),
    "f32-ragged": ("f32", 3, 19, 7, 3),
    "bf16-prefill": ("bf16", 4, 32, 40, 37),
    "q8_0": ("q8_0", 2, 64, 21, 5),
}


@pytest.mark.parametrize("case", GROUPED.values(), ids=GROUPED)
@pytest.mark.parametrize("cut", [0, 5, 31])
def test_grouped_linear(
    bench: Bench, rng: np.random.Generator, case: tuple[str, int, int, int, int], cut: int
) -> None:
    """The matrix in one bank, or in two that share a group."""
    format, groups, columns, per_group, tokens = case
    w = random_blocks(rng, format, groups * per_group, columns)
    x = numbers(rng, tokens, groups * columns)
    if format == "f32" and cut == 5:
        x_value = bench.input(x, offset=2, gap=1)
    else:
        x_value = bench.input(x, gap=columns)
    banks = [w[:cut], w[cut:]] if 0 < cut < len(w) else [w]
    matrix = bench.matrix(*((format, rows) for rows in banks), columns=columns)
    bench.plan(PlanKey(tokens, 1, 64, "token"))
    out = bench.output(tokens, len(w), gap=2)
    bench.run("grouped_linear", (x_value, matrix), (out,), GroupedLinearSpec(groups))

    values = formats.decode(format, w, columns).reshape(groups, per_group, columns)
    expected = np.einsum("tgc,gnc->tgn", x.reshape(tokens, groups, columns), values)
    assert bench.untouched([out])
    assert_close(bench.values(out), expected.reshape(tokens, -1), TOLERANCE)
