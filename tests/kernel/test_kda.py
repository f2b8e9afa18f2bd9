"""KDA against zllm.attention.kda: sequences that begin and go on, among others and padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.kernel.bench import F32, Bench, assert_close
from zllm.attention import kda
from zllm.attention.kda import ConvSpec, DecaySpec, DeltaSpec
from zllm.backend.contract import Cache, Op, PlanKey
from zllm.backend.webgpu.kda import chunks, missing_delta
from zllm.norm import RmsNormSpec

pytestmark = pytest.mark.vulkan

TOLERANCE = 1e-5  # of the largest result


@dataclass(frozen=True)
class Sequence:
    rows: slice
    position: int  # of its first row
    planes: tuple[int, int]  # read, written


# Rows and first positions of the sequences, then rows and sequences of the plan.
ROUNDS: dict[str, tuple[list[tuple[int, int]], int, int]] = {
    "decode": ([(1, 7)], 1, 1),
    "decode-begins": ([(1, 0)], 1, 1),
    "decode-padded": ([(1, 3), (1, 0), (1, 90)], 4, 4),
    "prefill": ([(19, 0)], 32, 1),
    "append": ([(2, 5), (33, 0), (1, 1), (7, 64)], 48, 8),
    "chunks": ([(16, 9), (47, 0), (1, 3), (32, 30), (20, 7)], 128, 8),
}
HEADS = {"one": (1, 16), "odd": (3, 5), "ragged": (2, 44), "wide": (1, 128), "widest": (1, 200)}


def planned(bench: Bench, name: str) -> list[Sequence]:
    """A round; its planes are dealt in no order, and plane 0 is scratch."""
    pieces, rows, seqs = ROUNDS[name]
    found, first = [], 0
    for i, (count, position) in enumerate(pieces):
        planes = (2 * len(pieces) - i, 1 + i)
        found.append(Sequence(slice(first, first + count), position, planes))
        first += count
    positions = [p + np.arange(count) for count, p in pieces]
    bench.plan(
        PlanKey(rows, seqs, 64, "token"),
        valid_rows=first,
        valid_seqs=len(found),
        seq=np.repeat(np.arange(len(found)), [count for count, _ in pieces]),
        position=np.concatenate(positions),
        length=[s.position + s.rows.stop - s.rows.start for s in found],
        first_row=[s.rows.start for s in found],
        last_row=[s.rows.stop - 1 for s in found],
        read_plane=[s.planes[0] for s in found],
        written_plane=[s.planes[1] for s in found],
    )
    return found


def planes_of(bench: Bench, found: list[Sequence], shape: tuple[int, ...]) -> tuple[F32, Cache]:
    """States as held, NaN where nothing may be read."""
    rng = np.random.default_rng(8)
    held = np.full((2 * len(found) + 2, *shape), np.nan, np.float32)
    for s in found:
        if s.position:
            held[s.planes[0]] = rng.standard_normal(shape)
    return held, bench.store_of("state", (held,), group="state")


def check_planes(bench: Bench, found: list[Sequence], cache: Cache, expected: F32) -> None:
    """The written planes as expected; no other was touched."""
    got = bench.read(bench.store(cache).buffers[0]).reshape(expected.shape)
    for s in found:
        plane = s.planes[1]
        assert_close(got[plane], expected[plane], TOLERANCE)
    others = np.setdiff1d(np.arange(len(got)), [s.planes[1] for s in found])
    assert np.array_equal(got[others], expected[others], equal_nan=True)


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("name", ROUNDS)
def test_conv(plain_bench: Bench, rng: np.random.Generator, name: str, taps: int) -> None:
    """Seeded faults seen to fail: taps in reverse, a plane read at position 0, one input older,

    inputs of the sequence before.
    """
    bench, widths = plain_bench, (40, 40, 23)
    found = planned(bench, name)
    rows, channels = bench.key.rows, sum(widths)
    held, cache = planes_of(bench, found, (taps - 1, channels))
    x = rng.standard_normal((rows, channels)).astype(np.float32)
    w = rng.standard_normal((channels, taps)).astype(np.float32)
    outs = bench.parts(rows, widths)
    taps_rows = bench.matrix(("f32", w.view(np.uint8)), columns=taps)
    flat = bench.input(x, offset=1, gap=2)
    bench.run("conv", (flat, taps_rows, cache), outs, ConvSpec(taps))

    assert bench.untouched(outs)
    got = np.concatenate([bench.values(out) for out in outs], axis=1)
    for s in found:
        past = held[s.planes[0]] if s.position else np.zeros((taps - 1, channels), np.float32)
        expected, after = kda.conv(x[s.rows], w, past)
        assert_close(got[s.rows], expected, TOLERANCE)
        held[s.planes[1]] = after
    check_planes(bench, found, cache, held)


@pytest.mark.parametrize("bound", [0.0, -5.0], ids=["softplus", "bounded"])
@pytest.mark.parametrize("rows", [1, 70])
def test_decay(plain_bench: Bench, rng: np.random.Generator, rows: int, bound: float) -> None:
    """Seeded faults seen to fail: the rate of another head, softplus linear from 2 on."""
    bench, spec = plain_bench, DecaySpec(3, 7, bound)
    a = (rng.standard_normal((rows, 21)) * 9).astype(np.float32)
    a[0, :6] = 19.9, 20.1, 100, -4.7, -12, -100
    a_log = rng.standard_normal(3).astype(np.float32)
    bias = rng.standard_normal(21).astype(np.float32)
    out = bench.output(rows, 21, gap=2)
    ins = bench.input(a, offset=2, gap=3), bench.vector(a_log, "a"), bench.vector(bias, "b")
    bench.run("decay", ins, (out,), spec)

    assert bench.untouched([out])
    expected = kda.decay(a, a_log, bias, spec)
    got = bench.values(out)
    assert (np.abs(got - expected) <= 1e-5 * np.abs(expected) + 1e-9).all()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("name", ROUNDS)
def test_delta(bench: Bench, rng: np.random.Generator, name: str, heads: tuple[int, int]) -> None:
    """Seeded faults seen to fail: the write undecayed, an answer before the write, a norm left

    out, the plane read at position 0, values of the row before; in chunks a token that overlaps
    itself, decays of the rows of another sequence.
    """
    found = planned(bench, name)
    g = -np.exp(2 * rng.standard_normal((bench.key.rows, heads[0] * heads[1])) - 2)
    check_delta(bench, rng, found, DeltaSpec(*heads), g.astype(np.float32))


@pytest.mark.parametrize("strongest", [5, 40, 3000, np.inf], ids=str)
def test_strong_decays(bench: Bench, rng: np.random.Generator, strongest: float) -> None:
    """What a chunk forgot does not blur what came later.

    Seeded fault seen to fail from 40 on: decays between tokens from one f32 sum.
    """
    found, spec = planned(bench, "chunks"), DeltaSpec(2, 36)
    shape = bench.key.rows, spec.heads * spec.head_size
    strong = rng.random(shape) < 0.4
    weak = -(np.float32(10) ** rng.uniform(-6, 0, shape))
    g = np.where(strong, np.float32(-strongest), weak).astype(np.float32)
    check_delta(bench, rng, found, spec, g)


def test_heads_in_turn(bench: Bench, rng: np.random.Generator) -> None:
    """Where a buffer does not hold the chunks of all heads. Seeded fault seen to fail: each turn

    begins at head 0.
    """
    bench.info = replace(bench.info, max_binding_bytes=1 << 20)
    found, spec = planned(bench, "chunks"), DeltaSpec(5, 40)
    g = -rng.random((bench.key.rows, 200), np.float32)
    check_delta(bench, rng, found, spec, g)


@pytest.mark.parametrize("rows, seqs, expected", [(8, 8, False), (15, 1, False), (64, 8, True)])
def test_many_rows_are_taken_in_chunks(bench: Bench, rows: int, seqs: int, expected: bool) -> None:
    bench.plan(PlanKey(rows, seqs, 64, "token"))
    on_gpu = not bench.info.software
    assert chunks(DeltaSpec(2, 128), bench) == (expected and on_gpu)
    assert not chunks(DeltaSpec(2, 129), bench)


def check_delta(
    bench: Bench, rng: np.random.Generator, found: list[Sequence], spec: DeltaSpec, g: F32
) -> None:
    rows, width = bench.key.rows, spec.heads * spec.head_size
    held, cache = planes_of(bench, found, (spec.heads, spec.head_size, spec.head_size))
    q, k, v = rng.standard_normal((3, rows, width)).astype(np.float32)
    q += k / 2  # where k·q cancels, a first token's whole answer is little but rounding
    beta = rng.standard_normal((rows, spec.heads)).astype(np.float32)
    qkv = bench.parts(rows, (width,) * 3)
    bench.fill(qkv, np.concatenate([q, k, v], axis=1))
    out = bench.output(rows, width, gap=3)
    ins = (*qkv, bench.input(g, offset=3, gap=1), bench.input(beta, offset=7, gap=5), cache)
    bench.run("delta", ins, (out,), spec)

    assert bench.untouched([out])
    shape = (-1, spec.heads, spec.head_size)
    got = bench.values(out)
    for s in found:
        before = held[s.planes[0]] if s.position else np.zeros(held.shape[1:], np.float32)
        heads = [x[s.rows].reshape(shape) for x in (q, k, v)]
        expected, after = one_by_one(heads, g[s.rows].reshape(shape), beta[s.rows], before)
        assert_close(got[s.rows], expected.reshape(-1, width), TOLERANCE)
        held[s.planes[1]] = after
    check_planes(bench, found, cache, held)


def one_by_one(qkv: list[F32], g: F32, beta: F32, state: F32) -> tuple[F32, F32]:
    """kda.delta token by token."""
    o = np.empty_like(qkv[2])
    for t in range(len(g)):
        one = slice(t, t + 1)
        q, k, v = (x[one] for x in qkv)
        o[one], state = kda.delta((q, k, v), g[one], beta[one], state)
    return o, state


@pytest.mark.parametrize("heads", [(3, 5), (2, 128)], ids=str)
@pytest.mark.parametrize("rows", [1, 21])
def test_gated_norm(
    bench: Bench, rng: np.random.Generator, rows: int, heads: tuple[int, int]
) -> None:
    """Seeded faults seen to fail: σ left out, the gate of another head."""
    count, size = heads
    x, gate = rng.standard_normal((2, rows, count * size)).astype(np.float32)
    x[:, :size] *= 20
    w = rng.standard_normal(size).astype(np.float32)
    out = bench.output(rows, count * size, gap=2)
    ins = bench.input(x, offset=1, gap=2), bench.input(gate, offset=3, gap=7), bench.vector(w)
    bench.run("gated_norm", ins, (out,), RmsNormSpec(1e-2))

    assert bench.untouched([out])
    per_head = [a.reshape(rows, count, size) for a in (x, gate)]
    expected = kda.gated_norm(*per_head, w, 1e-2).reshape(rows, -1)
    assert_close(bench.values(out), expected, TOLERANCE)


def test_heads_wider_than_the_kernel_are_refused(bench: Bench) -> None:
    refused = missing_delta(Op("delta", (), (), DeltaSpec(1, 257)), bench.info)
    assert (refused is None) == bench.info.software
