"""Plans share buffers: what one plan holds at a time is never handed out twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zllm.backend.webgpu.export import SWIFTSHADER, ExportDevice
from zllm.backend.webgpu.pool import Lease, Pool
from zllm.errors import BackendError


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    device = ExportDevice(replace(SWIFTSHADER, max_binding_bytes=1 << 20), tmp_path / "pool")
    yield Pool(device)
    device.close()


def test_a_buffer_is_held_by_one_value_at_a_time(pool: Pool) -> None:
    lease = Lease(pool)
    first, second = lease.take(1000, "a"), lease.take(1000, "b")
    assert first is not second
    lease.give(first)
    assert lease.take(1000, "c") is first


def test_the_next_plan_starts_with_everything(pool: Pool) -> None:
    first = Lease(pool)
    taken = {id(first.take(size, "x")) for size in (400, 70_000, 300_000)}
    size_bytes = pool.size_bytes
    second = Lease(pool)
    assert {id(second.take(size, "x")) for size in (300_000, 400, 70_000)} == taken
    assert pool.size_bytes == size_bytes


def test_the_smallest_that_fits_is_taken(pool: Pool) -> None:
    lease = Lease(pool)
    large, small = lease.take(60_000, "large"), lease.take(500, "small")
    lease.give(large)
    lease.give(small)
    assert lease.take(300, "x") is small
    assert lease.take(300, "y") is large


def test_a_large_buffer_is_not_spent_on_a_value_far_smaller(pool: Pool) -> None:
    lease = Lease(pool)
    lease.give(lease.take(1 << 20, "large"))
    assert lease.take(100_000, "x").size_bytes < 1 << 20


@pytest.mark.parametrize("size_bytes", [1, 255, 257, (1 << 20) - 4])
def test_sizes_are_whole_words_within_the_limit(pool: Pool, size_bytes: int) -> None:
    buffer = Lease(pool).take(size_bytes, "x")
    assert size_bytes <= buffer.size_bytes <= 1 << 20
    assert buffer.size_bytes % 4 == 0


def test_what_no_binding_holds_is_refused_by_name(pool: Pool) -> None:
    with pytest.raises(BackendError, match=r"the result of linear takes 2 MiB.*at most 1 MiB"):
        Lease(pool).take(2 << 20, "the result of linear")
