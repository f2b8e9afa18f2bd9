from __future__ import annotations

import random

from zllm.kv_cache.paged import PagePool
from zllm.kv_cache.planes import NO_PLANE, PlaneTable


def test_a_round_reads_what_the_one_before_wrote() -> None:
    table = PlaneTable(PagePool(9, 1))
    assert table.begin() == (NO_PLANE, 1)
    assert table.begin() == (1, 2)
    table.commit()
    assert table.committed == 1
    assert table.begin() == (2, 3)
    table.commit()
    assert table.committed == 2 and table.pool.references[1] == 0
    table.close()
    assert table.pool.free == 8


def test_rollback_leaves_the_committed_plane() -> None:
    table = PlaneTable(PagePool(9, 1))
    table.begin()
    table.commit()
    for _ in range(3):
        table.begin()
    table.rollback()
    assert table.committed == 1 and table.pool.free == 7
    assert table.begin()[0] == 1


def test_a_checkpoint_outlives_the_table_and_later_commits() -> None:
    table = PlaneTable(PagePool(9, 1))
    table.begin()
    table.commit()
    held = table.checkpoint()
    table.begin()
    table.commit()
    assert held == 1 and table.committed != held
    table.close()
    assert [*table.pool.references] == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    table.pool.release(held)
    assert table.pool.free == 8


def test_no_plane_is_written_while_it_is_read_or_held() -> None:
    rng, pool = random.Random(0), PagePool(40, 1)
    tables = [PlaneTable(pool) for _ in range(5)]
    held: list[int] = []
    for _ in range(3000):
        table = rng.choice(tables)
        match rng.randrange(6):
            case 0 | 1 | 2 if len(table.written) < 3:
                others = {t.committed for t in tables} | {p for t in tables for p in t.written}
                read, written = table.begin()
                assert written not in others and written not in held and written != read
            case 3 if table.written:
                table.commit()
            case 4 if table.committed != NO_PLANE and len(held) < 8:
                held.append(table.checkpoint())
            case 5:
                rng.choice([table.rollback, table.close])()
                if held and rng.random() < 0.5:
                    pool.release(held.pop(rng.randrange(len(held))))
    for table in tables:
        table.close()
    for plane in held:
        pool.release(plane)
    assert pool.free == 39 and not any(pool.references)
