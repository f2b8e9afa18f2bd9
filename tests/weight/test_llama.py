"""Llama names and GGUF metadata: the same model through both containers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.llama_gguf import as_array, permute, write_llama_gguf
from zllm.errors import LoadError
from zllm.weight import llama
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import F32, Quantized
from zllm.weight.shards import open_folder

FOLDERS = ("llama", "llama_rope3")
METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 6,
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 32,
}
SHAPES = {
    "token_embd.weight": (10, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    **{f"blk.0.attn_{part}.weight": (8, 8) for part in ("q", "k", "v", "output")},
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (6, 8),
    "blk.0.ffn_up.weight": (6, 8),
    "blk.0.ffn_down.weight": (8, 6),
}


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: f32(shape) for name, shape in shapes.items()}


def f32(shape: tuple[int, ...], value: float = 0.0) -> F32:
    raw = np.full(shape, value, "<f4").tobytes()
    return F32(shape, TensorBytes(BytesSource(raw), 0, len(raw)))


@pytest.mark.parametrize("folder", FOLDERS)
def test_gguf_holds_the_same_model(data_dir: Path, tmp_path: Path, folder: str) -> None:
    hf = open_checkpoint(data_dir / "golden" / folder)
    gguf = open_checkpoint(write_llama_gguf(data_dir / "golden" / folder, tmp_path / "m.gguf"))

    spec = hf.config
    rope = replace(gguf.config.rope, **{n: getattr(spec.rope, n) for n in LLAMA3_FIELDS})
    assert gguf.config.rope.interleaved and not spec.rope.interleaved
    assert gguf.config.norm_eps == pytest.approx(spec.norm_eps)  # GGUF has it as float32
    assert replace(gguf.config, norm_eps=spec.norm_eps, rope=rope) == spec
    assert gguf.tensors.keys() == hf.tensors.keys()
    for name, weight in hf.tensors.items():
        want = as_array(weight)
        if part := re.fullmatch(r"layers\.\d+\.([qk])(\.bias)?", name):
            want = permute(want, spec.heads if part[1] == "q" else spec.kv_heads)
        np.testing.assert_array_equal(as_array(gguf.tensors[name]), want, err_msg=name)


LLAMA3_FIELDS = (
    "scaling",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_context",
    "divisors",
    "interleaved",
)


def test_rope_divisors(data_dir: Path, tmp_path: Path) -> None:
    plain, rope3 = (
        open_checkpoint(write_llama_gguf(data_dir / "golden" / name, tmp_path / f"{name}.gguf"))
        for name in FOLDERS
    )
    assert plain.config.rope.divisors == ()
    divisors = rope3.config.rope.divisors
    assert len(divisors) == 8
    # The fastest pair turns within the original context; the slowest gets the whole factor.
    assert divisors[0] == 1 and divisors[-1] == 8
    assert any(1 < divisor < 8 for divisor in divisors)


def turn(pairs: NDArray[np.float32], position: int) -> NDArray[np.complex64]:
    """Rotary embedding with a pair as a complex number."""
    angles = position * 10000.0 ** -(np.arange(len(pairs)) / len(pairs))
    turned: NDArray[np.complex64] = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angles)
    return turned


def test_permutation_keeps_scores() -> None:
    """Why q and k may stay permuted: pair j of a head is (2j, 2j + 1) instead of (j, j + K/2)."""
    q, k = np.random.default_rng(1).standard_normal((2, 8), np.float32)
    halves = [turn(x.reshape(2, 4).T, at) for x, at in ((q, 7), (k, 3))]
    neighbours = [turn(permute(x, 1).reshape(4, 2), at) for x, at in ((q, 7), (k, 3))]
    scores = [np.vdot(a, b).real for a, b in (halves, neighbours)]
    assert scores[0] == pytest.approx(scores[1]) and abs(scores[0]) > 0.1


def test_minimal_gguf() -> None:
    spec, tensors = llama.from_gguf(METADATA, weights(SHAPES))
    assert (spec.vocabulary, spec.kv_heads, spec.head_size, spec.rope.theta) == (10, 2, 4, 10000)
    assert spec.tied_embeddings and "head" not in tensors
    assert sorted(tensors) == ["embed"] + [
        f"layers.0.{part}"
        for part in ("attn_norm", "down", "ffn_norm", "gate", "k", "o", "q", "up", "v")
    ] + ["norm"]


def test_gguf_with_its_own_head_and_linear_rope() -> None:
    spec, tensors = llama.from_gguf(
        {**METADATA, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        weights({**SHAPES, "output.weight": (10, 8), "blk.0.attn_rot_embd.weight": (2,)}),
    )
    assert not spec.tied_embeddings and tensors["head"].shape == (10, 8)
    assert (spec.rope.scaling, spec.rope.factor) == ("linear", 4.0)


@pytest.mark.parametrize(
    ("metadata", "shapes", "message"),
    [
        ({"llama.block_count": None}, {}, "llama.block_count: missing"),
        (
            {"llama.block_count": 1 << 40},
            {},
            "'blk.1.attn_norm.weight' .layers.1.attn_norm. is miss",
        ),
        ({"llama.attention.head_count_kv": [1, 2]}, {}, "head_count_kv: got"),
        ({"llama.attention.value_length": 2}, {}, "value_length: got 2, expected the head size 4"),
        ({"llama.rope.dimension_count": 2}, {}, "dimension_count: got 2"),
        ({"llama.rope.scaling.type": "ntk"}, {}, "scaling.type: got 'ntk'"),
        ({"llama.vocab_size": 11}, {}, r"'token_embd.weight': shape \[10, 8\].*\[11, 8\]"),
        ({}, {"token_embd.weight": ()}, "llama.vocab_size: missing"),
        ({}, {"blk.0.ffn_up.weight": (8, 6)}, r"shape \[8, 6\], the config asks for \[6, 8\]"),
        ({}, {"blk.0.attn_q.bias": (8,)}, "'blk.0.attn_k.bias' .layers.0.k.bias. is missing"),
        ({}, {"blk.0.attn_sinks.weight": (2,)}, r"no use for: \['blk.0.attn_sinks.weight'\]"),
        ({}, {f"x{i}": (1,) for i in range(7)}, "and 2 more"),
        ({}, {"rope_freqs.weight": (3,)}, r"rope_freqs.weight': f32 \[3\], expected f32 \[2\]"),
    ],
)
def test_gguf_refusals(
    metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llama.from_gguf({**METADATA, **metadata}, weights({**SHAPES, **shapes}))


def test_type_without_codec_is_listed_and_refused_when_used() -> None:
    odd = Quantized((6, 8), TensorBytes(BytesSource(bytes(9)), 0, 9), "q9_k")
    _, tensors = llama.from_gguf(METADATA, {**weights(SHAPES), "blk.0.ffn_up.weight": odd})
    up = tensors["layers.0.up"]
    assert isinstance(up, Quantized) and up.format == "q9_k" and up.data.size_bytes == 9
    with pytest.raises(LoadError, match=r"'blk\.0\.ffn_up\.weight': type q9_k is not supported"):
        up.data.read()


def test_hf_buffers_and_a_tied_head_are_skipped(data_dir: Path) -> None:
    checkpoint = open_checkpoint(data_dir / "golden" / "llama")
    assert checkpoint.metadata["tie_word_embeddings"]
    hf = open_folder(data_dir / "golden" / "llama").tensors
    extra = {
        "lm_head.weight": checkpoint.tensors["embed"],
        "model.rotary_emb.inv_freq": f32((4,)),
        "model.layers.2.self_attn.rotary_emb.inv_freq": f32((4,)),
    }
    _, tensors = llama.from_hf(checkpoint.metadata, {**hf, **extra})
    assert tensors.keys() == checkpoint.tensors.keys()
    with pytest.raises(LoadError, match="no use for"):
        llama.from_hf(checkpoint.metadata, {**hf, "model.layers.2.mlp.extra.weight": f32((1,))})
