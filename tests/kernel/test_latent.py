"""latent_append and attend_latent against their references, over a paged cache."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import PAGE_SLOTS, Bench
from zllm.backend.contract import PlanKey

pytestmark = pytest.mark.vulkan

PAGES = 12


@pytest.mark.parametrize("turned", [0, 3], ids=["", "rotated"])
def test_latent_append(plain_bench: Bench, rng: np.random.Generator, turned: int) -> None:
    """Seven rows, the last two of them padding: the cache may not change for those."""
    bench, rows, valid, rank = plain_bench, 7, 5, 21
    latent = rng.standard_normal((rows, rank)).astype(np.float32)
    k_rope = rng.standard_normal((rows, turned)).astype(np.float32)
    slots = np.array([9, 30, 4, 5, 17, 0, 0])
    held = np.full((PAGES * PAGE_SLOTS, rank + turned), np.nan, np.float32)
    bench.plan(PlanKey(rows, 1, 40, "none"), pages=PAGES, valid_rows=[valid], full_row_slot=slots)
    cache = bench.store_of("latent", (held,))
    part = bench.input(k_rope, offset=2, gap=1) if turned else None
    bench.run("latent_append", (bench.input(latent, offset=3, gap=2), part, cache))

    held[slots[:valid]] = np.concatenate([latent, k_rope], axis=1)[:valid]
    (latents,) = bench.store(cache).buffers
    np.testing.assert_array_equal(bench.read(latents).reshape(held.shape), held)
