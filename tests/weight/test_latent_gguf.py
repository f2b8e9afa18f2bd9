"""Latent attention in GGUF files: the same models as in Hugging Face folders, number by number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.files import GgufTensor, write_gguf
from tests.helpers.golden import recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.model_spec.latent import Latent
from zllm.quant.formats import decode
from zllm.quant.weights import decode_all, decode_rows
from zllm.weight import latent_gguf
from zllm.weight.byte_source import FileSource
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.gguf import open_gguf

F32 = NDArray[np.float32]
TOP = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
PARTS = {
    "attn_norm": "attn_norm",
    "q_a": "attn_q_a",
    "q_norm": "attn_q_a_norm",
    "q_b": "attn_q_b",
    "q": "attn_q",
    "kv_a": "attn_kv_a_mqa",
    "kv_norm": "attn_kv_a_norm",
    "kv_b": "attn_kv_b",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared.down": "ffn_down_shexp",
}


def values_of(checkpoint: Checkpoint) -> dict[str, F32]:
    return {name: decode_all(weight) for name, weight in checkpoint.tensors.items()}


def q8_0(values: F32) -> bytes:
    """Blocks of 32: an f16 scale, then codes."""
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-9)).astype(np.int8)
    return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scale, codes, strict=True))


def gguf_tensors(spec: Any, values: Mapping[str, F32], *, apart: bool) -> dict[str, GgufTensor]:
    """As llama.cpp's converter writes them; apart: keys turned over, values by themselves."""
    found: dict[str, F32] = {}
    experts: dict[str, list[F32]] = {}
    for name, array in values.items():
        if name in TOP:
            found[f"{TOP[name]}.weight"] = array
            continue
        _, layer, part = name.split(".", 2)
        at = f"blk.{layer}."
        if part == "router.correction":
            found[f"{at}exp_probs_b.bias"] = array
        elif part.startswith("experts."):
            kind = part.rpartition(".")[2]
            experts.setdefault(f"{at}ffn_{kind}_exps.weight", []).append(array)
        elif part == "kv_b" and apart:
            n, v, rank = spec.latent.nope, spec.latent.value, spec.latent.rank
            heads = array.reshape(-1, n + v, rank)
            found[f"{at}attn_k_b.weight"] = heads[:, :n].transpose(0, 2, 1)
            found[f"{at}attn_v_b.weight"] = heads[:, n:]
        else:
            found[f"{at}{PARTS[part]}.weight"] = array
    found |= {name: np.stack(arrays) for name, arrays in experts.items()}
    return {
        name: ("f32", array.shape, np.ascontiguousarray(array).tobytes())
        for name, array in found.items()
    }


def common(arch: str, spec: Any, *, apart: bool) -> dict[str, Any]:
    latent = spec.latent
    whole = latent.nope + latent.rotated
    sizes = {
        "attention.key_length": latent.rank + latent.rotated if apart else whole,
        "attention.value_length": latent.rank if apart else latent.value,
        **({"attention.key_length_mla": whole} if apart else {}),
        **({"attention.value_length_mla": latent.value} if apart else {}),
        "attention.q_lora_rank": latent.query_rank,
        "attention.kv_lora_rank": latent.rank,
        "attention.head_count": spec.heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "block_count": spec.layers,
        "context_length": spec.context,
        "embedding_length": spec.width,
        "feed_forward_length": spec.ffn_width,
        "rope.dimension_count": latent.rotated,
        "rope.freq_base": spec.rope.theta,
    }
    keys: dict[str, Any] = {f"{arch}.{key}": value for key, value in sizes.items()}
    return {"general.architecture": arch, **keys}


def deepseek2(spec: Any, *, apart: bool) -> dict[str, Any]:
    e = spec.experts
    own = {
        "leading_dense_block_count": spec.sparse.index(True),
        "expert_count": e.experts,
        "expert_used_count": e.chosen,
        "expert_shared_count": e.shared_width // e.width,
        "expert_feed_forward_length": e.width,
        "expert_group_count": e.groups,
        "expert_group_used_count": e.kept_groups,
        "expert_weights_norm": e.normalise,
        "expert_weights_scale": e.scale,
        "expert_gating_func": 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": spec.rope.factor,
        "rope.scaling.original_context_length": spec.rope.original_context,
        "rope.scaling.yarn_log_multiplier": 0.07,
    }
    return common("deepseek2", spec, apart=apart) | {f"deepseek2.{k}": v for k, v in own.items()}


@pytest.fixture
def one_mscale(tmp_path: Path) -> Path:
    """DeepSeek V3 with mscale = mscale_all_dim, as all published ones have it: GGUF has but one."""
    folder = tmp_path / "hf"
    shutil.copytree(GOLDEN / "deepseek_v3", folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["mscale"] = config["rope_parameters"]["mscale_all_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("apart", [False, True], ids=["kv_b", "k_b and v_b"])
def test_deepseek2_is_the_same_model(one_mscale: Path, tmp_path: Path, apart: bool) -> None:
    folder = open_checkpoint(one_mscale)
    path = tmp_path / "model.gguf"
    tensors = gguf_tensors(folder.config, values_of(folder), apart=apart)
    write_gguf(path, deepseek2(folder.config, apart=apart), tensors)
    gguf = open_checkpoint(path)
    assert gguf.architecture == "deepseek_v3"
    rope, theirs = gguf.config.rope, folder.config.rope
    assert rope.score_factor == pytest.approx(theirs.score_factor)
    assert rope.attention_factor == theirs.attention_factor == 1
    for name, values in values_of(folder).items():
        assert np.array_equal(decode_all(gguf.tensors[name]), values), name
    assert gguf.tensors.keys() == folder.tensors.keys()
    assert_equal_logits(one_mscale, path, "deepseek_v3")


def assert_equal_logits(folder: Path, path: Path, golden: str) -> None:
    ids = [recorded(golden)[f"p{prompt}_ids"].tolist() for prompt in (0, 1, 2)]
    with (
        Engine(model=folder, backend="oracle") as ours,
        Engine(model=path, backend="oracle") as theirs,
        Engine(model=path, backend="oracle", resident="packed") as packed,
    ):
        wanted = ours.logits(ids)
        for engine in (theirs, packed):
            for logits, truth in zip(engine.logits(ids), wanted, strict=True):
                np.testing.assert_allclose(logits, truth, atol=2e-5)


def test_minicpm3_is_the_same_model(tmp_path: Path) -> None:
    folder = open_checkpoint(GOLDEN / "minicpm3")
    spec, path = folder.config, tmp_path / "model.gguf"
    metadata = common("minicpm3", spec, apart=False)
    del metadata["minicpm3.attention.value_length"]  # llama.cpp writes none
    own = {
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.branch_scale,
        "logit_scale": 1 / spec.logit_scale,
        "rope.scaling.original_context_length": spec.rope.original_context,
        "rope.scaling.attn_factor": spec.rope.attention_factor,
    }
    tensors = gguf_tensors(spec, values_of(folder), apart=False)
    for which, divisors in (("short", spec.rope.divisors), ("long", spec.rope.long_divisors)):
        array = np.array(divisors, np.float32)
        tensors[f"rope_factors_{which}.weight"] = ("f32", array.shape, array.tobytes())
    write_gguf(path, metadata | {f"minicpm3.{key}": value for key, value in own.items()}, tensors)
    gguf = open_checkpoint(path)
    assert gguf.config.latent == spec.latent and gguf.config.tied_embeddings
    assert_equal_logits(GOLDEN / "minicpm3", path, "minicpm3")


def test_minicpm3_without_keys_has_the_scales_of_the_published_model(tmp_path: Path) -> None:
    folder = open_checkpoint(GOLDEN / "minicpm3")
    tensors = gguf_tensors(folder.config, values_of(folder), apart=False)
    path = tmp_path / "model.gguf"
    write_gguf(path, common("minicpm3", folder.config, apart=False), tensors)
    found = open_checkpoint(path).config
    scales = (found.embedding_scale, found.branch_scale, found.logit_scale)
    assert scales == pytest.approx((12, 1.4 / 3**0.5, 256 / 48))


def test_keys_in_blocks_are_turned_over_too(tmp_path: Path) -> None:
    """Keys [H, R, n] in q8_0, values in f32: rows of any range, across heads."""
    heads, n, v, rank = 3, 32, 5, 7
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((heads, rank, n)).astype(np.float32)
    values = rng.standard_normal((heads, v, rank)).astype(np.float32)
    stored = q8_0(keys)
    tensors: dict[str, GgufTensor] = {
        "blk.0.attn_k_b.weight": ("q8_0", keys.shape, stored),
        "blk.0.attn_v_b.weight": ("f32", values.shape, values.tobytes()),
    }
    path = write_gguf(tmp_path / "kv.gguf", {"general.architecture": "any"}, tensors)
    opened = open_gguf(FileSource(path)).tensors
    canonical = {f"layers.0.{part}": opened[f"blk.0.attn_{part}.weight"] for part in ("k_b", "v_b")}
    (weight,) = latent_gguf.together(canonical, Latent(0, rank, n, 2, v)).values()
    assert weight.shape == (heads * (n + v), rank)
    decoded = decode("q8_0", stored, n).reshape(keys.shape)
    whole = np.concatenate([decoded.transpose(0, 2, 1), values], axis=1).reshape(-1, rank)
    assert np.array_equal(decode_all(weight), whole)
    for first, count in ((0, 1), (31, 1), (32, 5), (30, 4), (36, 2), (20, 70), (110, 1)):
        assert np.array_equal(decode_rows(weight, first, count), whole[first : first + count])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 1, "expert_gating_func: got 1, expected 2"),
        ("expert_gating_func", None, "expert_gating_func: got None, expected 2"),
        ("expert_group_used_count", 9, "topk_group: got 9, expected at most n_group 4"),
        ("attention.kv_lora_rank", None, "attention.kv_lora_rank: missing"),
        ("rope.dimension_count", 20, "rope.dimension_count: got 20, expected an even number below"),
        ("attention.q_lora_rank", 27, r"shape \[28, 36\], the config asks for \[27, 36\]"),
    ],
)
def test_refusals_name_the_key(
    tmp_path: Path, one_mscale: Path, key: str, value: int | None, message: str
) -> None:
    folder = open_checkpoint(one_mscale)
    metadata = deepseek2(folder.config, apart=False)
    metadata[f"deepseek2.{key}"] = value
    metadata = {name: value for name, value in metadata.items() if value is not None}
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, gguf_tensors(folder.config, values_of(folder), apart=False))
    with pytest.raises(LoadError, match=message):
        open_checkpoint(path)


def test_a_family_without_gguf_names_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {"general.architecture": "deepseek_v32"}, {})
    with pytest.raises(LoadError, match="GGUF files of deepseek_v32 are not supported"):
        open_checkpoint(path)
