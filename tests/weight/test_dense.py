"""Dense decoders through both containers: the same spec, the same weights, the same logits."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.dense_gguf import write_dense_gguf
from tests.helpers.golden import recorded
from tests.helpers.llama_gguf import as_array
from tests.helpers.tiny_model import GOLDEN, altered_copy
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.weight import gemma3, gguf_fields, minicpm, qwen2
from zllm.weight.byte_source import BytesSource, FileSource, TensorBytes
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.gguf import open_gguf
from zllm.weight.linear_weight import F32
from zllm.weight.shards import open_folder

# What the format does not say: windows, and what Gemma's scores are divided by. The golden folders
# are unlike any published model there.
SAID: dict[str, dict[str, Any]] = {
    "gemma3": {"layer_types": None, "query_pre_attn_scalar": 16},
    "minicpm": {},
    "qwen2": {"layer_types": None, "use_sliding_window": False},
    "qwen3": {},
}


def f32(*shape: int) -> F32:
    raw = bytes(4 * int(np.prod(shape)))
    return F32(shape, TensorBytes(BytesSource(raw), 0, len(raw)))


@pytest.mark.parametrize("name", SAID)
def test_gguf_holds_the_same_model(name: str, tmp_path: Path) -> None:
    folder = altered_copy(GOLDEN / name, tmp_path / "hf", config=SAID[name])
    hf, gguf = open_checkpoint(folder), open_checkpoint(write_dense_gguf(name, tmp_path / "m.gguf"))
    assert gguf.tensors.keys() == hf.tensors.keys()
    assert gguf.config.rope.interleaved == (name == "minicpm")
    assert getattr(gguf.config, "norm_offset", 0) == 0, "the converter has added 1 to the norms"
    assert spec_of(gguf.config) == spec_of(hf.config)


def spec_of(config: Any) -> dict[str, Any]:
    """Its fields but for those of the container; numbers as float32, which is what GGUF holds."""
    rope = replace(config.rope, interleaved=False)
    values = {**asdict(replace(config, rope=rope)), "norm_offset": 0}
    return {k: np.float32(v) if isinstance(v, float) else v for k, v in values.items()}


@pytest.mark.parametrize("name", SAID)
def test_gguf_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    ids = recorded(name)["p1_ids"].astype(int).tolist()
    logits = []
    folder = altered_copy(GOLDEN / name, tmp_path / "hf", config=SAID[name])
    for path in (folder, write_dense_gguf(name, tmp_path / "m.gguf")):
        with Engine(model=path, backend="oracle") as engine:
            logits += engine.logits([ids])
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5 * np.abs(logits[0]).max())


def test_a_vision_tower_is_left_out() -> None:
    """Both places of the text model in a checkpoint that has one."""
    config = open_checkpoint(GOLDEN / "gemma3").metadata
    flat = open_folder(GOLDEN / "gemma3").tensors
    nested = {"model_type": "gemma3", "text_config": config, "vision_config": {"hidden_size": 4}}
    spec, plain = gemma3.from_hf(config, flat)
    for prefix, vision, head in (
        ("model.language_model.", "model.", "lm_head.weight"),
        ("language_model.model.", "", "language_model.lm_head.weight"),
    ):
        tensors = {prefix + name.removeprefix("model."): part for name, part in flat.items()}
        tensors[f"{vision}vision_tower.encoder.weight"] = f32(3, 3)
        tensors[f"{vision}multi_modal_projector.mm_input_projection_weight"] = f32(2)
        tensors[head] = plain["embed"]  # tied
        got, found = gemma3.from_hf(nested, tensors)
        assert got == spec and found.keys() == plain.keys()
        assert np.array_equal(as_array(found["layers.2.up"]), as_array(plain["layers.2.up"]))


def test_what_a_model_has_no_use_for_is_refused() -> None:
    config, tensors = open_checkpoint(GOLDEN / "qwen2").metadata, open_folder(GOLDEN / "qwen2")
    with pytest.raises(LoadError, match=r"no use for: \['model\.layers\.0\.self_attn\.q_norm"):
        qwen2.from_hf(config, {**tensors.tensors, "model.layers.0.self_attn.q_norm.weight": f32(8)})
    bias = "model.layers.1.self_attn.v_proj.bias"
    without = {name: weight for name, weight in tensors.tensors.items() if name != bias}
    with pytest.raises(LoadError, match=r"v_proj\.bias' .layers\.1\.v\.bias. is missing"):
        qwen2.from_hf(config, without)


METADATA = {"general.architecture": "minicpm", "minicpm.rope.scaling.original_context_length": 64}


def test_gguf_longrope_is_told_by_its_tensors() -> None:
    factors = np.array([1.0, 2.0, 3.0], "<f4"), np.array([4.0, 5.0, 6.0], "<f4")
    short, long = (F32((3,), TensorBytes(BytesSource(array.tobytes()), 0, 12)) for array in factors)
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    rope = gguf_fields.rope(METADATA, tensors, 256, 3)
    assert rope.scaling == "longrope" and rope.original_context == 64
    assert rope.divisors == (1, 2, 3) and rope.long_divisors == (4, 5, 6)
    with pytest.raises(LoadError, match=r"'rope_factors_short.weight': f32 \[3\], expected f32"):
        gguf_fields.rope(METADATA, tensors, 256, 4)
    named = {**METADATA, "minicpm.rope.scaling.type": "longrope"}
    with pytest.raises(LoadError, match=r"rope_factors_long\.weight' and .* are missing"):
        gguf_fields.rope(named, {}, 256, 3)


def test_minicpm_gguf_without_scales_takes_those_of_the_first_model(tmp_path: Path) -> None:
    stored = open_gguf(FileSource(write_dense_gguf("minicpm", tmp_path / "m.gguf")))
    metadata = {k: v for k, v in stored.metadata.items() if not k.endswith("_scale")}
    spec, _ = minicpm.from_gguf(metadata, stored.tensors)
    assert (spec.embedding_scale, spec.head_scale) == (12, pytest.approx(256 / 48))
    assert spec.branch_scale == pytest.approx(1.4 / 3**0.5)


def test_gemma3_27b_gguf_divides_scores_otherwise(tmp_path: Path) -> None:
    """Known by its 62 layers: width / heads instead of the head size."""
    stored = open_gguf(FileSource(write_dense_gguf("gemma3", tmp_path / "m.gguf")))
    layers = {
        re.sub(r"blk\.0", f"blk.{i}", name): weight
        for i in range(62)
        for name, weight in stored.tensors.items()
        if not re.match(r"blk\.[1-9]", name)
    }
    spec, _ = gemma3.from_gguf({**stored.metadata, "gemma3.block_count": 62}, layers)
    assert spec.score_scale == (40 // 4) ** -0.5
    assert spec.windows == (9, 9, 9, 9, 9, 0) * 10 + (9, 9)
