from __future__ import annotations

import random
from collections import Counter

import pytest

from zllm.kv_cache.paged import PagePool, PageTable


def test_pages_are_handed_out_ascending_and_never_the_scratch_page() -> None:
    pool = PagePool(5, 4)
    assert [pool.allocate() for _ in range(4)] == [1, 2, 3, 4]
    assert pool.free == 0


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9])
def test_begin_makes_just_enough_room(tokens: int) -> None:
    pool = PagePool(9, 4)
    table = PageTable(pool)
    assert table.missing(tokens) == -(-tokens // 4)
    table.begin(tokens)
    assert table.missing(tokens) == 0 and len(table.pages) == -(-tokens // 4)
    table.commit(tokens)
    assert table.length == tokens
    assert table.missing(-tokens % 4) == 0 and table.missing(-tokens % 4 + 1) == 1


def test_slots_follow_the_pages() -> None:
    pool = PagePool(9, 4)
    other, table = PageTable(pool), PageTable(pool)
    table.begin(3)
    other.begin(1)
    table.commit(3)
    table.begin(3)
    assert table.pages == [1, 3] and [table.slot(p) for p in range(6)] == [4, 5, 6, 7, 12, 13]


def test_rollback_drops_pages_beyond_the_length() -> None:
    pool = PagePool(9, 4)
    table = PageTable(pool)
    table.begin(12)
    table.commit(4)
    table.rollback()
    assert table.pages == [1] and pool.free == 7
    table.begin(1)
    table.rollback()
    assert table.pages == [1], "nothing was committed"


@pytest.mark.parametrize(("tokens", "copied"), [(4, 0), (5, 1), (7, 3), (8, 0), (1, 1)])
def test_fork_shares_full_pages_and_copies_the_open_one(tokens: int, copied: int) -> None:
    pool = PagePool(9, 4)
    table = PageTable(pool)
    table.begin(9)
    table.commit(9)
    twin, source, target = table.fork(tokens)
    full = tokens // 4
    assert twin.length == tokens and twin.pages[:full] == table.pages[:full]
    assert source == [table.slot(p) for p in range(4 * full, tokens)] and len(source) == copied
    assert target == [twin.slot(p) for p in range(4 * full, tokens)]
    assert not set(twin.pages[full:]) & set(table.pages)
    table.close()
    assert pool.free == 8 - len(twin.pages)
    twin.close()
    assert pool.free == 8 and not any(pool.references)


def test_random_transactions_never_leak_or_share_a_written_page() -> None:
    rng = random.Random(11)
    for _ in range(200):
        pool = PagePool(rng.randint(2, 20), rng.choice([1, 4, 16]))
        tables: list[PageTable] = []
        for _ in range(60):
            _transaction(rng, pool, tables)
            held = Counter(page for table in tables for page in table.pages)
            assert all(pool.references[page] == held[page] for page in range(pool.pages))
            assert pool.free == pool.pages - 1 - len(held) and 0 not in held
            for table in tables:  # pages that may still be written belong to one table
                assert all(held[p] == 1 for p in table.pages[table.length // pool.page_slots :])
        for table in tables:
            table.close()
        assert pool.free == pool.pages - 1 and not any(pool.references)


def _transaction(rng: random.Random, pool: PagePool, tables: list[PageTable]) -> None:
    match rng.choice(["open", "write", "fork", "close", "rollback"]) if tables else "open":
        case "open":
            tables.append(PageTable(pool))
        case "write":
            table, tokens = rng.choice(tables), rng.randint(1, 20)
            if table.missing(tokens) <= pool.free:
                table.begin(tokens)
                table.commit(rng.randint(0, tokens))
                table.rollback()
        case "fork":
            table = rng.choice(tables)
            if table.length and pool.free:
                tables.append(table.fork(rng.randint(1, table.length))[0])
        case "rollback":
            rng.choice(tables).rollback()
        case _:
            tables.pop(rng.randrange(len(tables))).close()
