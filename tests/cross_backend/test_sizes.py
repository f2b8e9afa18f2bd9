"""Case A16: sizes that devices do not take as they come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.cross_backend.backends import BACKENDS, Opened
from tests.cross_backend.conftest import Open
from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import PACKED_USES, Value
from zllm.backend.selftest.case import Case, Record, Recorder, Stored
from zllm.backend.selftest.random_weight import dense, held
from zllm.backend.selftest.run import run
from zllm.embedded import Engine
from zllm.quant.weights import decode_all
from zllm.weight.linear_weight import LinearWeight

EMBED = frozenset({"embed"})


@pytest.fixture(scope="module")
def opened(backend: str) -> Iterator[Opened]:
    found = BACKENDS[backend].open()
    yield found
    found.backend.close()


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 70000, 131071])
def test_a16_more_rows_than_workgroups_in_a_dimension(opened: Opened, rows: int) -> None:
    """y = W x with row r of W all r, x = [1, 2, 3, 4]: y is 10 r, every row written once."""
    matrix = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 4, axis=1)
    weights = {
        "x": Stored([dense(np.array([[1, 2, 3, 4]]))], EMBED),
        "w": Stored([dense(matrix)], PACKED_USES),
    }

    def product(recorder: Recorder) -> Value:
        ins = (recorder.read("x"), recorder.weight["w"], None, None)
        return recorder.run("linear", ins, (rows,))[0]

    (result,) = run(case(f"{rows} rows", weights, 1, product), opened.backend, before=opened.poison)
    np.testing.assert_array_equal(result.array, 10 * np.arange(rows, dtype=np.float32)[None])


@pytest.mark.parametrize(
    "table",
    [
        held("f16", np.array([[1.5, -2.0, 3.25]], np.float16)),
        held("u8", np.array([[1, 2, 3, 4, 255]], np.uint8)),
        held("bf16", np.array([[0x3F80, 0xC000, 0x4040]], np.uint16)),
    ],
    ids=["f16 of 3", "u8 of 5", "bf16 of 3"],
)
def test_a16_rows_that_are_no_whole_words(opened: Opened, table: LinearWeight) -> None:
    """What was uploaded comes back."""

    def rows(recorder: Recorder) -> Value:
        return recorder.read("x")

    weights = {"x": Stored([table], EMBED)}
    name = f"{table.format} of {table.shape[1]}"
    (result,) = run(case(name, weights, 1, rows), opened.backend, before=opened.poison)
    np.testing.assert_array_equal(result.array, decode_all(table))


def case(name: str, weights: dict[str, Stored], rows: int, record: Record) -> Case:
    return Case(name, frozenset(), weights, {}, ((rows,),), (record,))


def test_a16_a_batch_of_nothing(open_engine: Open) -> None:
    engine: Engine = open_engine(GOLDEN / "llama")
    assert engine.logits([]) == []
    assert engine.generate_many([]) == []
