"""Sizes that WebGPU does not take as they are: more rows than a grid has groups, odd bytes, none.

Replays ggml-org/llama.cpp#19965, #19535; pygfx/wgpu-py#512; gfx-rs/wgpu#3170.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.bench import Bench
from tests.kernel.conftest import GUISES
from zllm.backend.selftest.random_weight import held
from zllm.backend.webgpu.upload import upload_matrix
from zllm.embedded import Engine
from zllm.errors import RequestError

pytestmark = pytest.mark.vulkan

LLAMA = Path(__file__).parents[1] / "data" / "golden" / "llama"
# Around 65,535 workgroups of one row, and of four and eight.
ROWS = [65535, 65536, 65537, 70000, 131071, 4 * 65535 + 3, 8 * 65535 + 9]
X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.mark.parametrize("guise", GUISES)
@pytest.mark.parametrize("rows", ROWS)
def test_every_row_is_written(device: Any, guise: str, rows: int) -> None:
    shown: Any = GUISES[guise]
    bench = Bench(device, replace(device.info, **shown))
    w = np.repeat(np.arange(rows, dtype=np.float32), 4).reshape(rows, 4)
    matrix = bench.matrix(("f32", w.view(np.uint8)), columns=4)
    out = bench.output(1, rows)
    bench.run("linear", (bench.input(X), matrix, None, None), (out,))
    np.testing.assert_array_equal(bench.values(out)[0], 10 * np.arange(rows, dtype=np.float32))
    assert bench.untouched([out])


@pytest.mark.parametrize("rows", ROWS[:5])
def test_embedding_finds_every_row(device: Any, rows: int) -> None:
    w = np.repeat(np.arange(rows, dtype=np.float32), 4).reshape(rows, 4)
    for guise in ("software", "gpu-plain"):
        shown: Any = GUISES[guise]
        bench = Bench(device, replace(device.info, **shown))
        matrix = bench.matrix(("f32", w.view(np.uint8)), columns=4)
        ids = [0, 65534, rows - 1]
        bench.plan(replace(bench.key, rows=3, seqs=1), token=ids, seq=[0, 0, 0])
        bench.carry("token", np.zeros(5, np.int32))
        out = bench.output(3, 4)
        bench.run("embed", (matrix,), (out,))
        np.testing.assert_array_equal(bench.values(out)[:, 0], np.array(ids, np.float32))


@pytest.mark.parametrize(("format", "dtype"), [("f16", "<f2"), ("bf16", "<u2"), ("f32", "<f4")])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (5, 3), (1, 1)])
def test_odd_bytes_pass_through(device: Any, format: str, dtype: str, shape: Sequence[int]) -> None:
    rows, columns = shape
    values = np.arange(1, 1 + rows * columns).astype(dtype).reshape(rows, columns)
    (bank,) = upload_matrix(device, "odd", [held(format, values, (rows, columns))])
    raw = device.read(bank.buffer, 0, bank.buffer.size_bytes)
    padded = np.frombuffer(raw, np.uint8).reshape(rows, -1)
    got = np.ascontiguousarray(padded[:, : columns * values.itemsize]).view(dtype)
    np.testing.assert_array_equal(got, values)
    assert bank.buffer.size_bytes % 4 == 0


def test_no_tokens_submit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu.wgpu_program import WgpuProgram

    with Engine(model=LLAMA, backend="webgpu", context=64, lanes=2) as engine:
        monkeypatch.setattr(WgpuProgram, "submit", None)
        assert engine.generate_many([]) == []
        assert engine.logits([]) == []
        with pytest.raises(RequestError):
            engine.generate({"tokens": [], "max_tokens": 3})
        with pytest.raises(RequestError):
            engine.logits([[]])
