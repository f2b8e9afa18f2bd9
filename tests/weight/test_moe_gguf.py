"""Models with experts as GGUF files give the logits of their Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import moe_gguf
from tests.helpers.files import GgufTensor, write_safetensors
from tests.helpers.golden import recorded, tensors
from tests.helpers.tiny_model import GOLDEN, altered_copy
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.weight.checkpoint import open_checkpoint


def config_of(folder: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDEN / folder / "config.json").read_text())
    return config


def logits_of(path: Path, ids: list[int]) -> NDArray[np.float32]:
    engine = Engine(model=path, backend="oracle")
    (logits,) = engine.logits([ids])
    engine.close()
    return logits


@pytest.fixture(scope="module")
def all_sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model with experts in its dense layer too, as llama.cpp requires."""
    arrays = {name: a for name, a in tensors("qwen3_moe").items() if ".0.mlp." not in name}
    for name in [name for name in arrays if name.startswith("model.layers.1.mlp.")]:
        arrays[name.replace("layers.1.", "layers.0.")] = -arrays[name]
    folder = tmp_path_factory.mktemp("all_sparse")
    config = {**config_of("qwen3_moe"), "mlp_only_layers": []}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", arrays)
    metadata = moe_gguf.metadata("qwen3moe", config, expert_feed_forward_length=16)
    moe_gguf.write(folder / "model.gguf", metadata, moe_gguf.one_by_one_to_fused(arrays, 8))
    return folder


def test_fused_softmax_routed_experts(all_sparse: Path) -> None:
    ids = recorded("qwen3_moe")["p1_ids"].astype(int).tolist()
    wanted = logits_of(all_sparse, ids)
    found = logits_of(all_sparse / "model.gguf", ids)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def sinks_metadata(config: dict[str, Any]) -> dict[str, Any]:
    return moe_gguf.metadata(
        "gpt-oss",
        config,
        expert_feed_forward_length=config["intermediate_size"],
        **{
            "attention.sliding_window": config["sliding_window"],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": config["rope_parameters"]["factor"],
            "rope.scaling.original_context_length": 64,
        },
    )


@pytest.fixture(scope="module")
def sinks_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sinks") / "model.gguf"
    arrays = moe_gguf.alternating_to_apart(tensors("gpt_oss"))
    return moe_gguf.write(path, sinks_metadata(config_of("gpt_oss")), arrays)


def test_config_of_experts_stored_apart(sinks_gguf: Path) -> None:
    checkpoint = open_checkpoint(sinks_gguf)
    folder = open_checkpoint(GOLDEN / "gpt_oss")
    same = ("windows", "rope", "experts", "chosen_experts", "ffn_width", "alpha", "head_size")
    for field in same:
        assert getattr(checkpoint.config, field) == getattr(folder.config, field), field
    assert checkpoint.config.limit == 7.0 and not checkpoint.config.interleaved
    checkpoint.close()
    folder.close()


def test_logits_of_experts_stored_apart(sinks_gguf: Path, tmp_path: Path) -> None:
    check_clamped_at_seven(sinks_gguf, "gpt_oss", tmp_path)


def test_logits_of_mxfp4_experts_stored_apart(tmp_path: Path) -> None:
    arrays = tensors("gpt_oss_mxfp4")
    plain = {name: a for name, a in arrays.items() if not name.endswith(("_blocks", "_scales"))}
    encoded: dict[str, GgufTensor] = {}
    for layer in range(2):
        prefix, stored = f"model.layers.{layer}.mlp.experts.", f"blk.{layer}.ffn_"
        both = [arrays[f"{prefix}gate_up_proj_{kind}"] for kind in ("blocks", "scales")]
        down = [arrays[f"{prefix}down_proj_{kind}"] for kind in ("blocks", "scales")]
        encoded[f"{stored}gate_exps.weight"] = moe_gguf.mxfp4_tensor(*(a[:, 0::2] for a in both))
        encoded[f"{stored}up_exps.weight"] = moe_gguf.mxfp4_tensor(*(a[:, 1::2] for a in both))
        encoded[f"{stored}down_exps.weight"] = moe_gguf.mxfp4_tensor(*down)
    path = tmp_path / "model.gguf"
    metadata = sinks_metadata(config_of("gpt_oss_mxfp4"))
    moe_gguf.write(path, metadata, moe_gguf.alternating_to_apart(plain), encoded)
    check_clamped_at_seven(path, "gpt_oss_mxfp4", tmp_path)


def check_clamped_at_seven(path: Path, folder: str, tmp_path: Path) -> None:
    """The references clamp at 1.2, which no GGUF file can say: here both clamp at 7."""
    hf = altered_copy(GOLDEN / folder, tmp_path / "hf", config={"swiglu_limit": 7.0})
    ids = recorded(folder)["p1_ids"].astype(int).tolist()
    wanted, found = logits_of(hf, ids), logits_of(path, ids)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_misshapen_fused_tensor_is_named(all_sparse: Path, tmp_path: Path) -> None:
    arrays = moe_gguf.one_by_one_to_fused(
        {name: a for name, a in tensors("qwen3_moe").items() if ".0.mlp." not in name}, 8
    )
    arrays["blk.1.ffn_up_exps.weight"] = arrays["blk.1.ffn_up_exps.weight"][:7]
    arrays |= {name.replace("blk.1", "blk.0"): a for name, a in arrays.items() if "blk.1" in name}
    metadata = moe_gguf.metadata("qwen3moe", config_of("qwen3_moe"), expert_feed_forward_length=16)
    path = moe_gguf.write(tmp_path / "model.gguf", metadata, arrays)
    with pytest.raises(LoadError, match=r"ffn_up_exps.*\[7, 16, 36\].*\[8, 16, 36\]"):
        open_checkpoint(path)
