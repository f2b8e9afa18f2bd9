"""Cases of ops that need others: caches that were filled, ids that were chosen."""

from __future__ import annotations

import numpy as np

from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.attention.gqa import GqaSpec
from zllm.attention.kda import ConvSpec, DeltaSpec
from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Value, Weight
from zllm.backend.selftest.build import Builder, Get, normal
from zllm.backend.selftest.case import Case, Record, Recorder
from zllm.kv_cache.spec import EntrySpec, IndexSpec, KvSpec, LatentSpec, StateSpec
from zllm.moe.routing import RouteSpec

EPS = 1e-6
FEW = 8  # columns that a product makes keys and gates of


def plain(b: Builder) -> Case:
    """Ops that need no other."""
    long = any(isinstance(w, Weight) and b.op.name == "rope" and len(w.parts) > 1 for w in b.op.ins)
    ins = b.operands()
    if b.op.name == "rope":
        table = b.op.weight(1)
        ins[1] = b.rope_table(table.shape[1], len(table.parts))
    return b.case(b.each_result(ins), long=long)


def rope_append(b: Builder) -> Case:
    """Its own result, then attention over what it wrote."""
    turned = _appended_keys(b, b.op.spec, halves=len(b.op.weight(4).parts))

    def attended(recorder: Recorder) -> Value:
        q, cache = turned(recorder)
        return recorder.run("attend", (q, cache), q.shape[1:], b.op.spec)[0]

    b.ops.add("attend")
    records: list[Record] = [lambda recorder: turned(recorder)[0], attended]
    return b.case(records, long=len(b.op.weight(4).parts) > 1)


def attend(b: Builder) -> Case:
    turned = _appended_keys(b, b.op.spec)
    sinks = b.operand(2)
    with_sinks = len(b.op.ins) > 2 and b.op.ins[2] is not None

    def record(recorder: Recorder) -> Value:
        q, cache = turned(recorder)
        ins = (q, cache, sinks(recorder)) if with_sinks else (q, cache)
        return recorder.run("attend", ins, q.shape[1:], b.op.spec)[0]

    return b.case([record])


def _appended_keys(b: Builder, spec: GqaSpec, halves: int = 1) -> Get:
    """Keys and values of the round are appended: q turned, and the cache."""
    b.ops.add("rope_append")
    cache = b.cache(KvSpec(spec.kv_heads, spec.head_size))
    q = b.input(spec.heads * spec.head_size)
    k, v = (b.input(spec.kv_heads * spec.head_size) for _ in range(2))
    table = b.rope_table(spec.rotated, halves)

    def get(recorder: Recorder) -> tuple[Value, object]:
        ins = [operand(recorder) for operand in (q, k, v, cache, table)]
        (turned,) = recorder.run("rope_append", ins, ins[0].shape[1:], spec)
        return turned, ins[3]

    return get


def latent_append(b: Builder) -> Case:
    """Attention with two small heads reads what was written."""
    rank, key = b.op.value(0).shape[1], b.op.ins[1]
    rotated = key.shape[1] if isinstance(key, Value) else 0
    spec = MlaSpec(2, nope=8, rotated=rotated, value=8, rank=rank, scale=rank**-0.5)
    unfold = b.matrix((2 * 16, rank), normal(rank**-0.5), read_by="attend_latent")
    return _latent(b, spec, unfold, chosen=0)


def attend_latent(b: Builder) -> Case:
    picked = b.op.ins[3] if len(b.op.ins) > 3 else None
    chosen = picked.shape[1] if isinstance(picked, Value) else 0
    return _latent(b, b.op.spec, b.operand(1), chosen)


def _latent(b: Builder, spec: MlaSpec, kv_b: Get, chosen: int) -> Case:
    b.ops |= {"latent_append", "attend_latent"}
    cache = b.cache(LatentSpec(spec.rank + spec.rotated))
    q = b.input(spec.heads * (spec.nope + spec.rotated))
    latent = b.input(spec.rank)
    key = b.input(spec.rotated) if spec.rotated else (lambda recorder: None)
    pick = _selected(b, SelectSpec(2, 16, chosen)) if chosen else (lambda recorder: None)

    def record(recorder: Recorder) -> Value:
        where = cache(recorder)
        recorder.run("latent_append", (latent(recorder), key(recorder), where))
        ins = (q(recorder), kv_b(recorder), where, pick(recorder))
        return recorder.run("attend_latent", ins, (spec.heads * spec.value,), spec)[0]

    return b.case([record])


def index_append(b: Builder) -> Case:
    size, ape = b.op.value(0).shape[1], b.op.ins[3] if len(b.op.ins) > 3 else None
    pool = ape.shape[0] if isinstance(ape, Weight) else 1
    return b.case([_selected(b, SelectSpec(2, size, 4 * pool, pool, tail=pool > 1))])


def select(b: Builder) -> Case:
    return b.case([_selected(b, b.op.spec)])


def _selected(b: Builder, spec: SelectSpec) -> Get:
    """Index keys of the round are appended, then positions are chosen."""
    b.ops |= {"index_append", "select"}
    cache = b.cache(IndexSpec(spec.size, spec.pool))
    q, weights = b.input(spec.heads * spec.size), b.input(spec.heads, normal(1.0, 1.0))
    key = b.input(spec.size)
    pooled = spec.pool > 1
    gate = b.input(spec.size) if pooled else (lambda recorder: None)
    ape = (
        b.matrix((spec.pool, spec.size), read_by="index_append")
        if pooled
        else (lambda recorder: None)
    )

    def get(recorder: Recorder) -> Value:
        where = cache(recorder)
        recorder.run("index_append", (key(recorder), where, gate(recorder), ape(recorder)))
        ins = (q(recorder), weights(recorder), where)
        return recorder.run("select", ins, (spec.width,), spec, dtypes=("i32",))[0]

    return get


def compress_append(b: Builder) -> Case:
    """Attention over a short window and all entries reads what was written."""
    compressor: CompressorSpec = b.op.spec
    spec = CompressedSpec(2, compressor.size, window=3, rate=compressor.rate)
    return _compressed(b, spec, b.vector(2), _entries(b, compressor), None)


def select_entries(b: Builder) -> Case:
    return b.case([_selected_entries(b, b.op.spec)])


def attend_compressed(b: Builder) -> Case:
    spec: CompressedSpec = b.op.spec
    entries, chosen = None, None
    picked = b.op.ins[4] if len(b.op.ins) > 4 else None
    if spec.rate:
        overlap = isinstance(picked, Value)
        compressor = CompressorSpec(spec.rate, spec.size, overlap, _turned(spec.size), EPS)
        entries = _entries(b, compressor)
    if isinstance(picked, Value):
        index = SelectEntriesSpec(SelectSpec(2, 16, picked.shape[1]), spec.rate)
        chosen = _selected_entries(b, index)
    return _compressed(b, spec, b.operand(2), entries, chosen)


def _turned(size: int) -> int:
    """Some, not all, of an entry's numbers."""
    return max(2, size // 4 * 2)


def _compressed(
    b: Builder, spec: CompressedSpec, sinks: Get, entries: Get | None, chosen: Get | None
) -> Case:
    b.ops |= {"latent_append", "attend_compressed"}
    raw, key = b.cache(LatentSpec(spec.size)), b.input(spec.size)
    q = b.input(spec.heads * spec.size)

    def record(recorder: Recorder) -> Value:
        where = raw(recorder)
        recorder.run("latent_append", (key(recorder), None, where))
        made = None if entries is None else entries(recorder)
        picked = None if chosen is None else chosen(recorder)
        ins = (q(recorder), where, sinks(recorder), made, picked)
        return recorder.run("attend_compressed", ins, (spec.heads * spec.size,), spec)[0]

    return b.case([record])


def _entries(b: Builder, spec: CompressorSpec) -> Get:
    """Keys and gates of the round are appended, and the entries of windows they complete."""
    b.ops |= {"linear", "compress_append"}
    cache = b.cache(EntrySpec(spec.size, spec.overlap))
    x = b.input(FEW)
    # Both are results of one product: a backend may take them for one array.
    kv_gate = b.matrix((2 * spec.width, FEW), read_by="linear", parts=(spec.width,) * 2)
    ape, norm = b.matrix((spec.rate, spec.width), read_by="compress_append"), b.vector(spec.size)
    table = b.rope_table(spec.rotated)

    def get(recorder: Recorder) -> object:
        where = cache(recorder)
        product = (x(recorder), kv_gate(recorder), None, None)
        kv, gate = recorder.run("linear", product, (spec.width,) * 2)
        ins = (kv, gate, where, *(w(recorder) for w in (ape, norm, table)))
        recorder.run("compress_append", ins, (), spec)
        return where

    return get


def _selected_entries(b: Builder, spec: SelectEntriesSpec) -> Get:
    b.ops.add("select_entries")
    index = spec.index
    compressor = CompressorSpec(spec.rate, index.size, True, _turned(index.size), EPS)
    entries = _entries(b, compressor)
    q, weights = b.input(index.heads * index.size), b.input(index.heads, normal(1.0, 1.0))

    def get(recorder: Recorder) -> Value:
        ins = (q(recorder), weights(recorder), entries(recorder))
        return recorder.run("select_entries", ins, (index.top_k,), spec, dtypes=("i32",))[0]

    return get


def conv(b: Builder) -> Case:
    spec: ConvSpec = b.op.spec
    x, w = b.operand(0), b.operand(1)
    state = b.cache(StateSpec((spec.kernel - 1, b.op.value(0).shape[1])))
    return b.case(b.each_result([x, w, state]))


def delta(b: Builder) -> Case:
    spec: DeltaSpec = b.op.spec
    inputs = [b.operand(index) for index in range(5)]
    state = b.cache(StateSpec((spec.heads, spec.head_size, spec.head_size)))
    return b.case(b.each_result([*inputs, state]))


def route_by_token(b: Builder) -> Case:
    experts = b.op.value(0).shape[1]
    table = _ids_of_tokens(b, experts, b.op.spec.top_k)
    return b.case(b.each_result([b.operand(0), table]))


def experts(b: Builder) -> Case:
    """The experts of each row come from a table, so that they do not depend on a choice."""
    b.ops.add("route_by_token")
    chosen, count = b.op.value(1).shape[1], b.op.spec.experts
    logits, table = b.input(count), _ids_of_tokens(b, count, chosen)
    spec = RouteSpec("sigmoid", chosen)
    x, *stored = (b.operand(index) for index in (0, 3, 4, 5, 6))

    def record(recorder: Recorder) -> Value:
        ins = (logits(recorder), table(recorder))
        dtypes = ("i32", "f32")
        routed = recorder.run("route_by_token", ins, (chosen,) * 2, spec, dtypes=dtypes)  # type: ignore[arg-type]
        operands = [x, *(lambda _, value=value: value for value in routed), *stored]
        return b.run(operands, recorder)[0]

    return b.case([record])


def _ids_of_tokens(b: Builder, experts: int, chosen: int) -> Get:
    """A table of `chosen` different experts for each token, unsorted."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.array([rng.permutation(experts)[:chosen] for _ in range(shape[0])])

    return b.matrix((b.tokens, chosen), draw, read_by="route_by_token")
