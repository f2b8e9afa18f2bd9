from __future__ import annotations

import random

import numpy as np
import pytest

from zllm.kv_cache.paged import PagePool, PageTable
from zllm.kv_cache.prefix import Cached, PrefixCache, common_prefix


def cached_table(pool: PagePool, tokens: int) -> PageTable:
    table = PageTable(pool)
    table.begin(tokens)
    table.commit(tokens)
    return table


def cached(
    tokens: list[int], table: PageTable, checkpoints: dict[int, int] | None = None
) -> Cached:
    return Cached(np.array(tokens[: table.length], np.int32), table, checkpoints)


def matched(found: tuple[int, Cached] | None) -> tuple[int, PageTable] | None:
    return found and (found[0], found[1].table)


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [1], 0), ([1], [2], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([4], [4], 1)],
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    words = np.array(a, np.int32), np.array(b, np.int32)
    assert common_prefix(*words) == common_prefix(*reversed(words)) == length


def test_the_longest_match_wins_over_retained_and_live_tables() -> None:
    pool, prefixes = PagePool(20, 4), PrefixCache()
    short, long, live = (cached_table(pool, n) for n in (3, 5, 6))
    prefixes.retain(cached([1, 2, 7], short))
    prefixes.retain(cached([1, 2, 3, 4, 5], long))
    running = Cached(np.array([1, 2, 3, 4, 9, 9], np.int32), live)
    assert matched(prefixes.match([1, 2, 3, 4, 5, 6], [running])) == (5, long)
    assert matched(prefixes.match([1, 2, 3, 4, 9, 9, 9], [running])) == (6, live)
    assert matched(prefixes.match([1, 2, 7, 7], [running])) == (3, short)
    assert prefixes.match([2, 1], [running]) is None
    assert prefixes.match([], [running]) is None


def test_only_cached_tokens_count() -> None:
    """The last drawn token was never fed: its keys and values are not there."""
    pool, prefixes = PagePool(20, 4), PrefixCache()
    table = cached_table(pool, 2)
    prefixes.retain(cached([1, 2, 3], table))
    assert matched(prefixes.match([1, 2, 3, 4], [])) == (2, table)


def test_eviction_takes_the_least_recently_matched_and_spares_one() -> None:
    pool, prefixes = PagePool(20, 4), PrefixCache()
    first, second = cached_table(pool, 4), cached_table(pool, 4)
    prefixes.retain(cached([1, 1, 1, 1], first))
    prefixes.retain(cached([2, 2, 2, 2], second))
    prefixes.match([1, 1], [])
    assert prefixes.evict(keep=second) and not first.pages and second.pages
    assert not prefixes.evict(keep=second) and prefixes.evict() and not prefixes.evict()
    assert pool.free == 19


def test_a_longer_answer_replaces_what_it_holds() -> None:
    pool, prefixes = PagePool(20, 4), PrefixCache()
    turn, other, chat = cached_table(pool, 4), cached_table(pool, 2), cached_table(pool, 8)
    prefixes.retain(cached([1, 2, 3, 4], turn))
    prefixes.retain(cached([1, 9], other))
    prefixes.retain(cached([1, 2, 3, 4, 5, 6, 7, 8], chat))
    assert not turn.pages and other.pages and chat.pages


def test_random_use_never_leaks() -> None:
    rng = random.Random(12)
    pool, prefixes = PagePool(30, 4), PrefixCache()
    for _ in range(500):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(2, 12))]
        match = matched(prefixes.match(tokens[:-1], []))
        while pool.free < 4:
            assert prefixes.evict(keep=match[1] if match else None)
        table = match[1].fork(match[0])[0] if match else PageTable(pool)
        assert table.length == (match[0] if match else 0)
        table.begin(len(tokens) - table.length)
        table.commit(len(tokens) - table.length)
        prefixes.retain(cached(tokens, table))
    while prefixes.evict():
        pass
    assert pool.free == 29 and not any(pool.references)


def test_a_state_is_reusable_where_it_was_held_and_nowhere_else() -> None:
    pool, planes = PagePool(20, 4), PagePool(5, 1)
    prefixes = PrefixCache(planes)
    table = cached_table(pool, 6)
    prefixes.retain(cached([1, 2, 3, 4, 5, 6], table, {4: planes.allocate(), 6: planes.allocate()}))
    assert matched(prefixes.match([1, 2, 3, 4, 5, 9], [])) == (4, table)
    assert matched(prefixes.match([1, 2, 3, 4, 5, 6, 7], [])) == (6, table)
    assert prefixes.match([1, 2, 3], []) is None
    assert prefixes.evict() and planes.free == 4 and pool.free == 19
