"""decode_rows: any run of rows of any weight, in chunks, into a given array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.weights import assert_same_bits, tensor
from zllm.quant import weights
from zllm.quant.block_scaled import BlockScaleSpec
from zllm.quant.weights import decode_all, decode_rows, has_codec, row_count
from zllm.weight.linear_weight import Encoded, Quantized, flattened, rows, transposed

VALUES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


def scaled(shape: tuple[int, ...], spec: BlockScaleSpec, scale: list[float]) -> Encoded:
    codes = tensor(np.full(shape, 0x38, np.uint8))  # 1.0 in E4M3
    aux = {"scale": tensor(np.array(scale, np.float32))}
    return Encoded(shape, codes.data, "scaled_e4m3", aux, spec)


def test_blocks_of_one_tensor(data_dir: Path) -> None:
    golden = np.load(data_dir / "quant" / "gguf_q5_k.npz")
    data = tensor(golden["bytes"]).data
    weight = Quantized(golden["truth"].shape, data, "q5_k")
    assert_same_bits(decode_rows(weight, 3, 2), golden["truth"][3:5])
    assert_same_bits(decode_rows(rows(weight, 2, 4), 1, 2), golden["truth"][3:5])


def test_rows_of_stacks_vectors_and_scalars() -> None:
    stack = tensor(VALUES)
    assert row_count(stack.shape) == 8
    assert_same_bits(decode_rows(stack, 3, 2), VALUES.reshape(8, 3)[3:5])
    assert_same_bits(decode_all(stack), VALUES)
    assert decode_rows(tensor(np.ones(5, np.float32)), 0, 1).shape == (1, 5)
    scalar = tensor(np.float32(7).reshape(()))
    assert decode_all(scalar).shape == () and decode_all(scalar) == 7


def test_transposed() -> None:
    """[E, D, N] as stored, [E, N, D] as a weight; rows across the border of two matrices."""
    weight = transposed(tensor(VALUES))
    truth = VALUES.swapaxes(1, 2)
    assert weight.shape == (2, 3, 4)
    assert_same_bits(decode_all(weight), truth.copy())
    assert_same_bits(decode_rows(flattened(weight), 1, 4), truth.reshape(6, 4)[1:5])
    half = transposed(tensor(VALUES.astype(np.float16)))
    assert_same_bits(decode_all(half), truth.copy())
    with pytest.raises(ValueError, match="q4_0: blocks of several elements cannot be transposed"):
        transposed(Quantized((32, 32), tensor(np.zeros(576, np.uint8)).data, "q4_0"))


def test_partial_blocks_in_both_directions() -> None:
    """5 x 5 in blocks of 2 x 3: the grid is 3 x 2."""
    weight = scaled((5, 5), BlockScaleSpec(2, 3, 5), [1, 2, 3, 4, 5, 6])
    assert decode_all(weight).tolist() == [
        [1, 1, 1, 2, 2],
        [1, 1, 1, 2, 2],
        [3, 3, 3, 4, 4],
        [3, 3, 3, 4, 4],
        [5, 5, 5, 6, 6],
    ]


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = scaled((5, 5), BlockScaleSpec(2, 3, 5), [1, 2, 3, 4, 5, 6])
    whole = decode_all(weight)
    monkeypatch.setattr(weights, "CHUNK_ELEMENTS", 5)
    assert_same_bits(decode_all(weight), whole)


def test_out_is_filled_and_returned() -> None:
    weight = scaled((5, 5), BlockScaleSpec(5, 5, 5), [3])
    out = np.zeros(10, np.float32)
    got = decode_rows(weight, 1, 2, out)
    assert np.shares_memory(got, out) and got.shape == (2, 5) and (out == 3).all()
    with pytest.raises(ValueError, match="float32 of 2 x 5"):
        decode_rows(weight, 1, 2, np.zeros(9, np.float32))


def test_refusals() -> None:
    stack = tensor(VALUES)
    with pytest.raises(ValueError, match=r"rows 7..9 wanted, a weight of shape \[2, 4, 3\] has 8"):
        decode_rows(stack, 7, 2)
    with pytest.raises(ValueError, match="no codec for format 'f4'"):
        decode_rows(Quantized((1, 2), stack.data, "f4"), 0, 1)
    assert has_codec("scaled_e2m1") and has_codec("iq1_m") and not has_codec("q8_1")
    with pytest.raises(ValueError, match=r"rows 2..6 wanted, the matrix has 5"):
        rows(scaled((5, 5), BlockScaleSpec(5, 5, 5), [3]), 2, 4)
