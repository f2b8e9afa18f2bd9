"""The WebGPU backend against the golden logits: full, split, token by token, in batches."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.backend.contract import Group, PlanKey
from zllm.errors import BackendError
from zllm.kv_cache.spec import KvSpec
from zllm.runtime.compose import ModelResources, build_loop
from zllm.runtime.forced import forced_logits
from zllm.runtime.generation import Generation, Sequence
from zllm.runtime.loop import Limits, Loop
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import F32

if TYPE_CHECKING:
    from zllm.backend.webgpu.backend import WebGpuBackend
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

pytestmark = pytest.mark.vulkan

T = TypeVar("T")
LANES = 4
CONTEXT = 256


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Native tickets never yield, so one `send` runs it all."""
    with pytest.raises(StopIteration) as done:
        work.send(None)
    answer: T = done.value.value
    return answer


def run(loop: Loop, *sequences: Sequence) -> list[list[int]]:
    while not loop.idle:
        drive(loop.step())
    return [s.tokens[len(s.generation.prompt) :] for s in sequences]


@pytest.fixture(scope="module")
def backend(device: WgpuDevice) -> WebGpuBackend:
    from zllm.backend.webgpu.backend import WebGpuBackend

    return WebGpuBackend(device, lanes=LANES)


# Kernel shapes are chosen by what the device says of itself, so every shape runs on any adapter.
KINDS: dict[str, dict[str, Any]] = {
    "software": {"software": True},
    "hardware": {"software": False},
    "bare": {"software": False, "features": frozenset(), "subgroup_size": 0},
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=["llama", "llama_rope3"])
def model(
    request: pytest.FixtureRequest, kind: str
) -> Iterator[tuple[Loop, dict[str, NDArray[Any]]]]:
    from zllm.backend.webgpu.backend import WebGpuBackend
    from zllm.backend.webgpu.wgpu_device import open_device

    folder = Path(__file__).parents[1] / "data" / "golden" / request.param
    device = open_device()
    device.info = replace(device.info, **KINDS[kind])
    backend = WebGpuBackend(device, lanes=LANES, kv_dtype="f32")
    with closing(open_checkpoint(folder)) as checkpoint:
        loop = build_loop(
            checkpoint.architecture,
            checkpoint.config,
            backend,
            lambda groups: ModelResources(backend, checkpoint.tensors, F32, groups, CONTEXT),
            Limits(CONTEXT, LANES, checkpoint.config.vocabulary),
            cache_tokens=2 * CONTEXT,
        )
    yield loop, dict(np.load(folder / "golden.npz"))
    backend.close()


def worst(logits: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    assert logits.shape == truth.shape
    return float(np.abs(logits - truth).max() / np.abs(truth).max())


# Measured on lavapipe: 2e-6. One skipped residual or a wrong slot gives 1e-1.
TOLERANCE = 1e-4

SPLITS = {
    "full": [71],
    "prefill and appends": [29, 21, 21],
    "prefill and decodes": [40, *[1] * 31],
    "token by token": [1] * 71,
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_golden_logits(model: tuple[Loop, dict[str, Any]], split: list[int]) -> None:
    loop, golden = model
    (logits,) = drive(forced_logits(loop, [golden["p1_ids"].tolist()], split))
    error = worst(logits, golden["p1_truth"])
    print(f"{error:.1e} of the largest logit")
    assert error <= TOLERANCE


@pytest.mark.parametrize("split", [[71], [5, 9, *[1] * 60]], ids=["full", "mixed"])
def test_golden_logits_in_a_batch(model: tuple[Loop, dict[str, Any]], split: list[int]) -> None:
    loop, golden = model
    batch = [golden[f"p{i}_ids"].tolist() for i in range(3)]
    for i, logits in enumerate(drive(forced_logits(loop, batch, split))):
        assert worst(logits, golden[f"p{i}_truth"]) <= TOLERANCE


def test_greedy_answers_alone_and_beside_others(model: tuple[Loop, dict[str, Any]]) -> None:
    loop, golden = model
    prompts = [tuple(golden[f"p{i}_ids"].tolist()) for i in range(3)]
    truth = golden["p0_greedy"].tolist()
    assert run(loop, loop.add(Generation(prompts[0], len(truth)))) == [truth]
    together = [loop.add(Generation(prompt, len(truth))) for prompt in prompts]
    assert run(loop, *together)[0] == truth
    assert together[0].cached_tokens > 0


def test_running_ahead_draws_the_same_tokens(model: tuple[Loop, dict[str, Any]]) -> None:
    loop, golden = model
    truth = golden["p0_greedy"].tolist()
    kept, loop.backend.rounds_in_flight = loop.backend.rounds_in_flight, 2
    try:
        sequence = loop.add(Generation(tuple(golden["p0_ids"].tolist()), len(truth)))
        assert run(loop, sequence) == [truth]
    finally:
        loop.backend.rounds_in_flight = kept


def test_nothing_grows_per_token(model: tuple[Loop, dict[str, Any]]) -> None:
    loop, golden = model
    prompt = tuple(golden["p2_ids"].tolist())
    run(loop, loop.add(Generation(prompt, 55)))
    before = dict(loop.backend.memory())
    sequence = loop.add(Generation(prompt, 55))
    run(loop, sequence)
    assert len(sequence.tokens) >= 50
    assert dict(loop.backend.memory()) == before
    assert all(before.values())


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        (PlanKey(1, 1, 5, "token"), PlanKey(1, 1, 256, "token")),
        (PlanKey(3, 3, 257, "token"), PlanKey(4, 4, 1024, "token")),
        (PlanKey(5, 1, 5, "none"), PlanKey(16, 1, 256, "none")),
        (PlanKey(17, 2, 5, "logits"), PlanKey(64, 2, 256, "logits")),
        (PlanKey(17, 16, 99, "token", "full", 3), PlanKey(64, 16, 256, "token", "full", 3)),
        (PlanKey(16, 9, 99, "token"), PlanKey(64, 16, 256, "token")),
        (PlanKey(600, 4, 99, "none"), PlanKey(1024, 4, 256, "none")),
        (PlanKey(600, 513, 99, "none"), PlanKey(1536, 1024, 256, "none")),
    ],
    ids=lambda key: f"{key.rows} rows, {key.seqs} seqs",
)
def test_buckets(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch, key: PlanKey, kept: PlanKey
) -> None:
    from zllm.backend.webgpu.backend import WebGpuBackend

    monkeypatch.setattr(device, "info", replace(device.info, software=False))
    backend = WebGpuBackend(device, lanes=LANES)
    assert backend.bucket(key) == kept
    assert backend.bucket(kept) == kept


def test_software_adapters_take_smaller_rounds(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zllm.backend.webgpu.backend import WebGpuBackend

    monkeypatch.setattr(device, "info", replace(device.info, software=True))
    backend = WebGpuBackend(device, lanes=LANES)
    assert (backend.prefill_rows, backend.rounds_in_flight) == (64, 1)
    assert backend.bucket(PlanKey(37, 1, 5, "none")) == PlanKey(48, 1, 256, "none")
    assert WebGpuBackend(device, lanes=LANES, rounds_in_flight=2).rounds_in_flight == 2


def test_contexts_stop_at_what_the_cache_holds(device: WgpuDevice) -> None:
    from zllm.backend.webgpu.backend import WebGpuBackend

    backend = WebGpuBackend(device, lanes=LANES)
    backend.new_cache("kv", KvSpec(1, 4), group=Group("full", 16, 21))
    assert backend.bucket(PlanKey(1, 1, 256, "token")).context == 256
    assert backend.bucket(PlanKey(1, 1, 257, "token")).context == 320


@pytest.mark.parametrize(("head_size", "dtype"), [(4, np.float32), (8, np.float16)])
def test_copied_slots_hold_what_their_sources_held(
    device: WgpuDevice, head_size: int, dtype: type[np.floating[Any]]
) -> None:
    """Keys and values are f16 where a head is a multiple of eight numbers."""
    from zllm.backend.webgpu.backend import WebGpuBackend

    backend = WebGpuBackend(device, lanes=LANES)
    backend.new_cache("copied", KvSpec(2, head_size), group=Group("copied", 4, 4))
    keys, stored = backend._stores["copied"].buffers
    values = np.arange(16 * 2 * head_size, dtype=dtype).reshape(16, -1)
    assert keys.size_bytes == stored.size_bytes == values.nbytes
    for buffer, sign in ((keys, 1), (stored, -1)):
        device.write(buffer, 0, (values * dtype(sign)).data.cast("B"))
    # Overlapping on purpose: every source is read before any target is written.
    source, target = [4, 5, 6, 1, 6], [5, 6, 7, 12, 4]
    backend.copy_slots("copied", source, target)
    backend.copy_slots("another group", [0], [1])
    backend.copy_slots("copied", [], [])
    expected = values.copy()
    expected[target] = values[source]
    for buffer, sign in ((keys, 1), (stored, -1)):
        got = np.frombuffer(device.read(buffer, 0, buffer.size_bytes), dtype)
        np.testing.assert_array_equal(got.reshape(16, -1), expected * dtype(sign))


def test_lanes_are_written_one_by_one(backend: WebGpuBackend, device: WgpuDevice) -> None:
    counts, bias = np.arange(5, dtype=np.int32), np.arange(5, dtype=np.float32) / 8
    backend.write_lane(1, counts=counts, bias=None)
    backend.write_lane(LANES, counts=counts + 1, bias=bias)
    held = device.read(backend._carry.counts(5), 0, 4 * 5 * (LANES + 1))
    rows = np.frombuffer(held, np.int32).reshape(LANES + 1, 5)
    assert rows[1].tolist() == counts.tolist()
    assert rows[LANES].tolist() == (counts + 1).tolist()
    assert not rows[[0, 2, 3]].any()
    held = device.read(backend._carry.bias(5), 4 * 5 * LANES, 20)
    np.testing.assert_array_equal(np.frombuffer(held, np.float32), bias)


def test_a_cache_beyond_the_binding_limit_names_the_flag(backend: WebGpuBackend) -> None:
    limit = backend.device.info.max_binding_bytes
    group = Group("endless", 16, 1 + limit // (16 * 2 * 512))
    with pytest.raises(BackendError, match=r"lower --context .* at most \d+ tokens"):
        backend.new_cache("endless", KvSpec(4, 128), group=group)


def test_a_step_of_another_layout_is_refused(model: tuple[Loop, dict[str, Any]]) -> None:
    loop, _ = model
    plan = loop.plans.get(PlanKey(1, 1, 1, "token"))
    with pytest.raises(BackendError, match=rf"int32 \[{plan.layout.words}\], got int32 \[3\]"):
        plan.submit(np.zeros(3, np.int32))


def test_closing_twice_does_nothing() -> None:
    from zllm.backend.webgpu.backend import open_backend

    backend = open_backend(lanes=1)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="closed"):
        backend.write_lane(0, counts=np.zeros(4, np.int32), bias=None)


def test_software_adapters_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu import backend, wgpu_device

    monkeypatch.setenv("ZLLM_WGPU_ADAPTER", wgpu_device.list_adapters()[-1]["name"])
    opened = backend.open_backend(lanes=1)
    software = opened.device.info.software
    opened.close()
    if not software:
        pytest.skip("no software adapter here")
    with pytest.raises(BackendError, match="--backend webgpu"):
        backend.open_backend(lanes=1, software=False)
