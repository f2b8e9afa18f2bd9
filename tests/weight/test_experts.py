"""Experts one by one and fused: the same model, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.files import write_safetensors
from tests.helpers.golden import recorded, tensors
from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.quant.weights import decode_rows
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.experts import ExpertNames, per_expert
from zllm.weight.linear_weight import F32, LinearWeight

Array = NDArray[np.float32]
Arrays = dict[str, Array]


def fuse(arrays: Arrays, experts: int) -> None:
    """Every layer's experts as transformers holds them in memory."""
    prefixes = sorted({name.split("experts.")[0] for name in arrays if ".experts." in name})
    for prefix in prefixes:
        taken = {
            part: [arrays.pop(f"{prefix}experts.{e}.{part}_proj.weight") for e in range(experts)]
            for part in ("gate", "up", "down")
        }
        arrays[f"{prefix}experts.gate_up_proj"] = np.stack(
            [np.concatenate(pair) for pair in zip(taken["gate"], taken["up"], strict=True)]
        )
        arrays[f"{prefix}experts.down_proj"] = np.stack(taken["down"])


def changed(folder: str, target: Path, change: Callable[[Arrays], None]) -> Path:
    arrays = dict(tensors(folder))
    change(arrays)
    target.mkdir()
    shutil.copyfile(GOLDEN / folder / "config.json", target / "config.json")
    write_safetensors(target / "model.safetensors", arrays)
    return target


def check_truth(path: Path, folder: str, resident: str = "f32") -> None:
    truth = recorded(folder)
    engine = Engine(model=path, backend="oracle", resident=resident)
    for prompt in range(3):
        (logits,) = engine.logits([truth[f"p{prompt}_ids"].astype(int).tolist()])
        wanted = truth[f"p{prompt}_truth"]
        assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()
    engine.close()


def test_fused_experts_are_the_same_model(tmp_path: Path) -> None:
    path = changed("qwen3_moe", tmp_path / "fused", lambda arrays: fuse(arrays, 8))
    check_truth(path, "qwen3_moe")


@pytest.mark.parametrize("folder", ["qwen3_moe", "gpt_oss", "gpt_oss_mxfp4"])
def test_experts_kept_as_the_file_holds_them(folder: str) -> None:
    check_truth(GOLDEN / folder, folder, resident="packed")


def test_experts_stored_inputs_first_are_turned() -> None:
    checkpoint = open_checkpoint(GOLDEN / "gpt_oss")
    stored = tensors("gpt_oss")
    for layer, e in ((0, 0), (2, 5)):
        prefix = f"model.layers.{layer}.mlp.experts."
        for part in ("gate_up", "down"):
            weight = checkpoint.tensors[f"layers.{layer}.experts.{e}.{part}"]
            wanted = stored[f"{prefix}{part}_proj"][e].T
            found = decode_rows(weight, 0, weight.shape[0])
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(decode_rows(weight, 3, 4), wanted[3:7])
            bias = checkpoint.tensors[f"layers.{layer}.experts.{e}.{part}.bias"]
            np.testing.assert_array_equal(
                decode_rows(bias, 0, 1)[0], stored[f"{prefix}{part}_proj_bias"][e]
            )
    checkpoint.close()


def weight_of(array: Array) -> LinearWeight:
    data = array.astype(np.float32).tobytes()
    return F32(array.shape, TensorBytes(BytesSource(data), 0, len(data)))


def test_vectors_are_cut_into_equal_runs() -> None:
    bias = np.arange(12, dtype=np.float32).reshape(2, 6)
    names = {"experts.bias": ("experts.{}.gate.bias", "experts.{}.up.bias")}
    cut = per_expert({"l.experts.bias": weight_of(bias)}, names, 2)
    shown = {name: (w.shape, decode_rows(w, 0, 1)[0].tolist()) for name, w in cut.items()}
    assert shown == {
        "l.experts.0.gate.bias": ((3,), [0, 1, 2]),
        "l.experts.0.up.bias": ((3,), [3, 4, 5]),
        "l.experts.1.gate.bias": ((3,), [6, 7, 8]),
        "l.experts.1.up.bias": ((3,), [9, 10, 11]),
    }


@pytest.mark.parametrize(
    ("shape", "fragment"),
    [
        ((3, 4, 5), "expected 2 experts"),
        ((2, 3, 5), "2 equal parts"),
        ((2,), "shape [2]"),
        ((1 << 40, 0, 5), "expected 2 experts"),
    ],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], fragment: str) -> None:
    fused = F32(shape, TensorBytes(BytesSource(b""), 0, 0))
    with pytest.raises(LoadError, match=r"mlp\.experts\.gate_up_proj") as error:
        per_expert({"mlp.experts.gate_up_proj": fused}, ExpertNames().fused, 2)
    assert fragment in str(error.value)


def test_an_expert_stored_twice_is_refused() -> None:
    fused = weight_of(np.zeros((2, 4, 3)))
    single = weight_of(np.zeros((2, 3)))
    both = {"l.experts.1.up_proj.weight": single, "l.experts.gate_up_proj": fused}
    for order in (both, dict(reversed(both.items()))):
        with pytest.raises(LoadError, match="stored twice"):
            per_expert(order, ExpertNames().fused, 2)
