from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.tiny_model import CASES, P12
from tests.runtime.conftest import LLAMA3, alone, essence, random_requests
from zllm.backend.contract import Group, Op, PlanKey, Value
from zllm.backend.oracle.backend import OracleBackend
from zllm.embedded import Engine
from zllm.kv_cache.spec import KvSpec
from zllm.quant.formats import FORMATS
from zllm.runtime.compose import ArrayBytes
from zllm.runtime.recorder import Recorder
from zllm.weight.linear_weight import F32, LinearWeight, stored

GROUP = Group("full", 4, 5)
MATRIX = frozenset({"embed", "linear", "gated_linear"})


@dataclass(frozen=True, slots=True)
class RawBytes:
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int = 0, size: int | None = None, /) -> memoryview:
        end = len(self.data) if size is None else offset + size
        return memoryview(self.data)[offset:end]


def f32_of(array: NDArray[np.float32]) -> LinearWeight:
    return F32(array.shape, ArrayBytes(array))


def random_weight(format: str, rows: int, columns: int, seed: int) -> LinearWeight:
    """Random valid blocks: bytes whose f16 scales are of ordinary size."""
    spec = FORMATS[format]
    rng = np.random.default_rng(seed)
    if format in ("f32", "f16"):
        values = rng.standard_normal((rows, columns)).astype(spec.name.replace("f", "float"))
        return stored(format, (rows, columns), RawBytes(values.tobytes()))
    if format == "bf16":
        bits = rng.standard_normal((rows, columns)).astype(np.float32).view(np.uint32) >> 16
        return stored(format, (rows, columns), RawBytes(bits.astype(np.uint16).tobytes()))
    blocks = rng.integers(0, 256, (rows * columns // spec.block_elements, spec.block_bytes))
    data = blocks.astype(np.uint8)
    scales = {"q4_0": (0,), "q4_1": (0, 2), "q8_0": (0,), "q6_k": (spec.block_bytes - 2,)}[format]
    for at in scales:
        data[:, at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return stored(format, (rows, columns), RawBytes(data.tobytes()))


@pytest.mark.parametrize("format", ["f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q6_k"])
def test_packed_weights_equal_dense_ones(format: str) -> None:
    """Parts of several formats joined, more rows than one chunk holds, rows taken by id."""
    columns = 512
    parts = [random_weight(format, 700, columns, 1), random_weight("f16", 3, columns, 2)]
    parts.append(random_weight(format, 1, columns, 3))
    dense, packed = OracleBackend(lanes=1), OracleBackend(lanes=1, packed=True)
    for backend in (dense, packed):
        weight = backend.load("w", parts, uses=MATRIX)
        assert (weight.shape, weight.parts) == ((704, columns), (700, 3, 1))
    x = np.random.default_rng(4).standard_normal((5, columns)).astype(np.float32)
    truth = x.astype(np.float64) @ dense.weights["w"].dense().T.astype(np.float64)
    for backend in (dense, packed):
        out = np.full((5, 704), np.nan, np.float32)
        backend.weights["w"].product(x, out)
        np.testing.assert_allclose(out, truth, atol=1e-5 * np.abs(truth).max())
    ids = np.array([703, 0, 699, 700, 702, 0])
    taken = np.empty((2, 6, columns), np.float32)
    for out, backend in zip(taken, (dense, packed), strict=True):
        backend.weights["w"].rows(ids, out)
    assert np.array_equal(taken[0], taken[1])
    assert packed.memory()["weights"] == sum(part.data.size_bytes for part in parts)
    assert dense.memory()["weights"] == 704 * columns * 4


def test_vectors_and_tables_are_never_packed() -> None:
    backend = OracleBackend(lanes=1, packed=True)
    table = f32_of(np.ones((3, 4), np.float32))
    backend.load("rope_table", [table], uses=frozenset({"rope_append"}))
    backend.load("norm", [f32_of(np.ones(4, np.float32))], uses=frozenset({"rms_norm"}))
    for name in ("rope_table", "norm"):
        assert backend.weights[name].dense() is backend.weights[name].dense()


def test_copy_slots_copies_every_cache_of_its_group_alone() -> None:
    backend = OracleBackend(lanes=1)
    other = Group("window", 4, 5)
    for name, group in (("a", GROUP), ("b", GROUP), ("c", other)):
        backend.new_cache(name, KvSpec(2, 3), group=group)
        for storage in backend.caches[name].arrays:
            storage[:] = np.arange(20)[None, :, None]
    backend.copy_slots("full", [1, 2, 9], [9, 1, 3])
    for name in "ab":
        for storage in backend.caches[name].arrays:
            assert storage[1, [9, 1, 3, 2], 2].tolist() == [1, 2, 9, 2]
    assert backend.caches["c"].arrays[0][0, 9, 0] == 9
    backend.copy_slots("none", [1], [2])


def test_an_unknown_op_is_missing() -> None:
    op = Op("convolve", (Value(0, (1, 1)),), (Value(1, (1, 1)),))
    assert OracleBackend(lanes=1).missing(op)


def test_decode_plans_last_while_the_context_grows() -> None:
    backend = OracleBackend(lanes=1)
    keys = {backend.bucket(PlanKey(1, 1, context, "token")) for context in range(1, 1025)}
    assert sorted(key.context for key in keys) == [128, 256, 512, 1024]
    assert all(key.rows == key.seqs == 1 for key in keys)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(model=LLAMA3, backend="oracle") as engine:
        yield engine


class Bucketed(OracleBackend):
    """Plans larger than their rounds, as devices have them."""

    keeps_prefill = True

    def bucket(self, key: PlanKey, /) -> PlanKey:
        seqs = 1 << (key.seqs - 1).bit_length()
        rows = seqs if key.rows == key.seqs else max(32, 2 * seqs, key.rows + 3)
        return replace(super().bucket(key), rows=rows, seqs=seqs)


def test_padding_changes_nothing(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zllm.backend.oracle.backend.OracleBackend", Bucketed)
    requests = random_requests(3, 25)
    with Engine(model=LLAMA3, backend="oracle", lanes=7) as engine:
        assert isinstance(engine.backend, Bucketed)
        answers = [essence(answer) for answer in engine.generate_many(requests)]
        assert answers == alone(plain, requests)
        for first, second in zip(engine.logits([P12]), plain.logits([P12]), strict=True):
            np.testing.assert_allclose(first, second, atol=1e-4)


def test_nothing_grows_with_the_tokens(plain: Engine) -> None:
    """After the first tokens a decode keeps no memory but the tokens themselves."""
    request: dict[str, Any] = {"tokens": P12, "temperature": 0, "ignore_eos": True}
    backend = plain.backend
    assert isinstance(backend, OracleBackend)
    plain.generate({**request, "max_tokens": 120})
    stream = plain.stream({**request, "max_tokens": 120, "return_token_ids": True})
    for _ in range(20):
        next(stream)
    arrays = [id(array) for array in backend.arena._arrays]
    plans, held = len(plain._loop.plans._plans), backend.memory()
    tracemalloc.start()
    try:
        next(stream)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            next(stream)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    stream.close()  # type: ignore[attr-defined]
    assert grown < 50 * 400, f"{grown / 50:.0f} bytes a token"
    assert arrays == [id(array) for array in backend.arena._arrays]
    assert (len(plain._loop.plans._plans), backend.memory()) == (plans, held)


def test_values_that_live_together_never_share_memory(plain: Engine) -> None:
    backend = plain.backend
    assert isinstance(backend, OracleBackend)
    for key in (PlanKey(5, 2, 128, "token", "full", 3), PlanKey(3, 3, 128, "logits")):
        plan = plain._loop.plans.get(key)
        ops: Sequence[Op] = plan.recording.ops  # type: ignore[attr-defined]
        arrays: dict[int, NDArray[np.float32]] = plan.arrays  # type: ignore[attr-defined]
        for at, op in enumerate(ops):
            later = {
                value.id for after in ops[at:] for value in after.ins if isinstance(value, Value)
            }
            made = {value.id for before in ops[:at] for value in before.outs}
            for live in made & later:
                assert all(not np.shares_memory(arrays[live], arrays[o.id]) for o in op.outs)


def test_a_part_of_a_product_lives_as_long_as_its_last_reader() -> None:
    """`second` is read at once, `first` after another product of the same size."""
    backend = OracleBackend(lanes=1)
    rng = np.random.default_rng(5)
    w, wide = rng.standard_normal((2, 8, 4)).astype(np.float32)
    halves = [f32_of(w[:4]), f32_of(w[4:])]
    pair = backend.load("pair", halves, uses=MATRIX)
    one = backend.load("one", [f32_of(w[:4])], uses=MATRIX)
    head = backend.load("head", [f32_of(wide)], uses=MATRIX)
    unit = backend.load("unit", [f32_of(np.ones(4, np.float32))], uses=frozenset({"rms_norm"}))
    ops = Recorder(PlanKey(3, 1, 128, "logits"), backend.missing)
    first, second = ops.project(ops.embed(one), pair)
    third, _ = ops.project(ops.linear(second, one), pair)
    ops.emit(ops.linear(third, one, residual=first), unit, head, 1e-6)
    plan = backend.compile(ops.finish([]))
    step = np.zeros(plan.layout.words, np.int32)
    step[plan.layout.offset["token"] :][:3] = [2, 0, 3]
    logits = plan.submit(step).round.logits
    x = w[[2, 0, 3]].astype(np.float64)
    t = (x @ w[4:].T @ w[:4].T) @ w[:4].T @ w[:4].T + x @ w[:4].T
    truth = t / np.sqrt((t**2).mean(1, keepdims=True)) @ wide.T
    np.testing.assert_allclose(logits, truth, rtol=1e-4, atol=1e-4)


def test_close_frees_everything_twice() -> None:
    engine = Engine(model=CASES / "chain-a", backend="oracle")
    engine.close()
    engine.backend.close()
    assert engine.backend.memory()["weights"] == engine.backend.memory()["caches"] == 0
