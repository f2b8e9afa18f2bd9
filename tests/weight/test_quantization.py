"""Quantised tensors become single weights that decode to golden/quant bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.weights import assert_same_bits, tensor
from zllm.errors import LoadError
from zllm.quant.weights import decode_all, decode_rows
from zllm.weight.linear_weight import Encoded, OneTensor, flattened, rows
from zllm.weight.quantization import assemble
from zllm.weight.quantization_config import read_quantization

Arrays = Mapping[str, NDArray[Any]]
Json = dict[str, Any]
Case = tuple[dict[str, OneTensor], Json | None, NDArray[np.float32]]

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def compressed(format: str, **weights: Any) -> Json:
    group = {"targets": ["Linear"], "weights": weights}
    config: Json = {"quant_method": "compressed-tensors", "format": format}
    return {**config, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def fp8_block(z: Arrays) -> Case:
    scale = tensor(z["weight_scale_inv"])
    return {"w": tensor(z["weight"], "f8_e4m3"), "w_scale_inv": scale}, FP8, z["truth"]


def fp8_ue8m0(z: Arrays) -> Case:
    scale = tensor(z["ue8m0_scale"], "f8_e8m0")
    return {"w": tensor(z["ue8m0_weight"], "f8_e4m3"), "scale": scale}, FP8, z["ue8m0_truth"]


def fp8_channel(z: Arrays) -> Case:
    config = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
    scale = tensor(z["weight_scale"])
    return {"w": tensor(z["weight"], "f8_e4m3"), "w_scale": scale}, config, z["truth"]


def fp8_channel_bf16(z: Arrays) -> Case:
    scale = tensor(z["weight_scale_bf16"], "bf16")
    tensors = {"w": tensor(z["weight"], "f8_e4m3"), "w_scale": scale}
    return tensors, {"quant_method": "fbgemm_fp8"}, z["truth_bf16_scale"]


def fp8_tensor(z: Arrays) -> Case:
    one = tensor(z["tensor_scale"])
    tensors = {"w": tensor(z["tensor_weight"], "f8_e4m3"), "w_scale": one, "input_scale": one}
    return tensors, {"quant_method": "modelopt", "quant_algo": "FP8"}, z["tensor_truth"]


def mxfp8(z: Arrays, prefix: str = "") -> Case:
    scale = tensor(z[f"{prefix or 'weight_'}scale"])
    tensors = {"w": tensor(z[f"{prefix}weight"], "f8_e4m3"), "w_scale": scale}
    return tensors, {"quant_method": "modelopt", "quant_algo": "MXFP8"}, z[f"{prefix}truth"]


def mxfp4(z: Arrays) -> Case:
    tensors = {"w_blocks": tensor(z["blocks"]), "w_scales": tensor(z["scales"])}
    return tensors, {"quant_method": "mxfp4"}, z["truth"]


def mxfp4_packed(z: Arrays) -> Case:
    """The same bytes as compressed-tensors and DeepSeek-V4 lay them out."""
    codes = tensor(z["blocks"][0].reshape(10, 48))
    config = compressed("mxfp4-pack-quantized", num_bits=4, group_size=32)
    return {"w_packed": codes, "w_scale": tensor(z["scales"][0])}, config, z["truth"][0]


def nvfp4_modelopt(z: Arrays) -> Case:
    tensors = {"w": tensor(z["packed"]), "w_scale": tensor(z["block_scale"], "f8_e4m3")}
    tensors["w_scale_2"] = tensor(z["modelopt_scale_2"])
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    return tensors, config, z["modelopt_truth"]


def nvfp4_compressed(z: Arrays) -> Case:
    config = compressed("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16)
    tensors = {"w_packed": tensor(z["packed"]), "w_scale": tensor(z["block_scale"], "f8_e4m3")}
    tensors["w_global_scale"] = tensor(z["ct_global_scale"].reshape(1))
    return tensors, config, z["ct_truth"]


def gptq(z: Arrays, kind: str, bits: int, group: int = 32) -> Case:
    names = ("qweight", "qzeros", "scales", "g_idx")
    tensors = {name: tensor(z[f"{kind}_{name}"]) for name in names}
    return tensors, {"quant_method": "gptq", "bits": bits, "group_size": group}, z[f"{kind}_truth"]


def gptq_v2(z: Arrays) -> Case:
    """What AutoGPTQ stores as zero - 1, gptq_v2 stores as it is."""
    tensors, config, truth = gptq(z, "asym", 4)
    words = z["asym_qzeros"].view(np.uint32)
    assert not any(((words >> shift & 15) == 15).any() for shift in range(0, 32, 4))
    tensors["qzeros"] = tensor((words + np.uint32(0x11111111)).view(np.int32))
    return tensors, {**(config or {}), "checkpoint_format": "gptq_v2"}, truth


def awq(z: Arrays) -> Case:
    tensors = {name: tensor(z[name]) for name in ("qweight", "qzeros", "scales")}
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    return tensors, config, z["truth"]


def packed(z: Arrays, kind: str, bits: int, group: int | None = None) -> Case:
    names = ("packed", "shape", "scale", "zero_point")
    stored = {name: f"{kind}_weight_{name}" for name in names}
    tensors = {f"w_{name}": tensor(z[key]) for name, key in stored.items() if key in z}
    strategy = "group" if group else "channel"
    config = compressed("pack-quantized", num_bits=bits, strategy=strategy, group_size=group)
    return tensors, config, z[f"{kind}_truth"]


def int8(z: Arrays) -> Case:
    tensors = {"w": tensor(z["int8_weight"]), "w_scale": tensor(z["int8_weight_scale"])}
    return tensors, compressed("int-quantized", num_bits=8, strategy="channel"), z["int8_truth"]


CASES: dict[str, tuple[str, Any]] = {
    "fp8-block": ("fp8_block128", fp8_block),
    "fp8-block-ue8m0": ("fp8_block128", fp8_ue8m0),
    "fp8-channel": ("fp8_channel", fp8_channel),
    "fp8-channel-bf16": ("fp8_channel", fp8_channel_bf16),
    "fp8-tensor": ("fp8_channel", fp8_tensor),
    "mxfp8": ("mxfp8", mxfp8),
    "mxfp8-extremes": ("mxfp8", lambda z: mxfp8(z, "edge_")),
    "mxfp4-gpt-oss": ("mxfp4_gptoss", mxfp4),
    "mxfp4-packed": ("mxfp4_gptoss", mxfp4_packed),
    "nvfp4-modelopt": ("nvfp4", nvfp4_modelopt),
    "nvfp4-compressed": ("nvfp4", nvfp4_compressed),
    "gptq4": ("gptq_w4", lambda z: gptq(z, "sym", 4)),
    "gptq4-zeros": ("gptq_w4", lambda z: gptq(z, "asym", 4)),
    "gptq4-act-order": ("gptq_w4", lambda z: gptq(z, "actorder", 4)),
    "gptq4-v2": ("gptq_w4", gptq_v2),
    "gptq8": ("gptq_w8", lambda z: gptq(z, "sym", 8)),
    "gptq8-zeros": ("gptq_w8", lambda z: gptq(z, "asym", 8)),
    "gptq8-act-order": ("gptq_w8", lambda z: gptq(z, "actorder", 8)),
    "awq": ("awq_w4", awq),
    "w4-group": ("compressed_tensors_int", lambda z: packed(z, "w4_group_sym", 4, 32)),
    "w4-group-zeros": ("compressed_tensors_int", lambda z: packed(z, "w4_group_asym", 4, 32)),
    "w4-channel": ("compressed_tensors_int", lambda z: packed(z, "w4_channel_sym", 4)),
    "w8-channel": ("compressed_tensors_int", lambda z: packed(z, "w8_channel_sym", 8)),
    "w8-group-zeros": ("compressed_tensors_int", lambda z: packed(z, "w8_group_asym", 8, 32)),
    "int8": ("compressed_tensors_int", int8),
}


def full_name(part: str) -> str:
    """`w…` stands for `weight…`."""
    return "m." + ("weight" + part[1:] if part[0] == "w" else part)


def build(data_dir: Path, case: str) -> tuple[dict[str, OneTensor], Json, NDArray[np.float32]]:
    file, make = CASES[case]
    tensors, config, truth = make(np.load(data_dir / "quant" / f"{file}.npz"))
    return {full_name(name): part for name, part in tensors.items()}, config, truth


def weight_of(tensors: Mapping[str, OneTensor], config: Json | None) -> Encoded:
    found = assemble(tensors, read_quantization({"quantization_config": config}))
    assert list(found) == ["m.weight"]
    weight = found["m.weight"]
    assert isinstance(weight, Encoded) and weight.name == "m.weight"
    return weight


@pytest.mark.parametrize("case", CASES)
def test_golden(data_dir: Path, case: str) -> None:
    tensors, config, truth = build(data_dir, case)
    weight = weight_of(tensors, config)
    assert weight.shape == truth.shape
    assert_same_bits(decode_all(weight), truth)


@pytest.mark.parametrize("case", CASES)
def test_rows_by_themselves(data_dir: Path, case: str) -> None:
    """Any run of rows of any slice of rows, in every order of axes and stack of matrices."""
    tensors, config, truth = build(data_dir, case)
    weight = flattened(weight_of(tensors, config))
    truth = truth.reshape(weight.shape)
    size = len(truth)
    for first, count in ((0, 1), (size - 1, 1), (size // 3, size - size // 3), (size, 0)):
        assert_same_bits(decode_rows(weight, first, count), truth[first : first + count])
    if size > 3:
        part = rows(weight, 2, size - 3)
        assert_same_bits(decode_rows(part, 1, part.shape[0] - 1), truth[3:-1])


def test_nan_codes_decode_to_nan(data_dir: Path) -> None:
    z = np.load(data_dir / "quant" / "fp8_block128.npz")
    codes = tensor(z["nan_weight"].reshape(1, 4), "f8_e4m3")
    scale = tensor(np.ones((1, 1), np.float32))
    weight = weight_of({"m.weight": codes, "m.weight_scale_inv": scale}, FP8)
    assert_same_bits(decode_all(weight)[0], z["nan_truth"])


def test_stack_of_matrices_has_a_grid_for_each() -> None:
    """[2, 3, 4] in blocks of 2 x 4: the third row of each matrix is a partial block."""
    codes = tensor(np.full((2, 3, 4), 0x38, np.uint8), "f8_e4m3")
    scale = tensor(np.array([1, 2, 3, 4], np.float32).reshape(2, 2, 1))
    config = {"quant_method": "fp8", "weight_block_size": [2, 4]}
    found = assemble({"up": codes, "up_scale_inv": scale}, read_quantization(wrap(config)))
    values = decode_all(found["up"])
    assert values[:, :, 0].tolist() == [[1, 1, 2], [3, 3, 4]]
    flat = decode_rows(rows(flattened(found["up"]), 2, 3), 0, 3)
    assert flat[:, 0].tolist() == [2, 3, 3]


def wrap(config: Json) -> Json:
    return {"quantization_config": config}


def test_plain_tensors_pass_and_their_like_names_stay() -> None:
    """A scale that belongs to no codes is a tensor of the model; scales of activations go."""
    plain = {"hc_attn_scale": tensor(np.ones(3, np.float32))}
    plain["m.weight"] = tensor(np.ones((2, 2), np.float32))
    assert assemble(plain, None) == plain
    both = plain | {"m.input_scale": tensor(np.ones((), np.float32))}
    assert assemble(both, read_quantization(wrap(FP8))) == plain
    assert assemble(both, None) == both


def test_groups_of_a_config_are_chosen_by_module(data_dir: Path) -> None:
    """Two config groups with their own bits, by pattern and by name."""
    four, config, truth4 = build(data_dir, "w4-group")
    eight, _, truth8 = build(data_dir, "w8-channel")
    groups = {
        "a": {"targets": ["re:.*q_proj$"], "weights": {"num_bits": 4, "group_size": 32}},
        "b": {"targets": ["k_proj"], "weights": {"num_bits": 8, "group_size": None}},
    }
    tensors = {name.replace("m.", "x.q_proj."): part for name, part in four.items()}
    tensors |= {name.replace("m.", "x.k_proj."): part for name, part in eight.items()}
    found = assemble(tensors, read_quantization(wrap({**config, "config_groups": groups})))
    assert_same_bits(decode_all(found["x.q_proj.weight"]), truth4)
    assert_same_bits(decode_all(found["x.k_proj.weight"]), truth8)


def without(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def put(name: str, values: NDArray[Any], format: str = "") -> Any:
    return lambda tensors: tensors.update({name: tensor(values, format)})


ONES = np.ones((2, 3), np.float32)
SPOILT: dict[str, tuple[str, Any, Json, str]] = {
    "grid": (
        "fp8-block",
        put("m.weight_scale_inv", ONES),
        {},
        r"'m.weight_scale_inv': shape \[2, 3\] does not scale 'm.weight' \[130, 140\]; expected"
        r" \[2, 2\] for blocks of 128 x 128",
    ),
    "no-block": (
        "fp8-block",
        lambda tensors: None,
        {"weight_block_size": None},
        "and the config declares none",
    ),
    "no-scale": ("fp8-channel", without("m.weight_scale"), {}, "f8_e4m3 codes without a scale"),
    "integer-scale": (
        "int8",
        put("m.weight_scale", np.ones((20, 1), np.int32)),
        {},
        "a scale in i32",
    ),
    "no-scales": ("gptq4", without("m.scales"), {}, "'m.weight': its 'm.scales' is missing"),
    "no-zeros": ("awq", without("m.qzeros"), {}, "'m.weight': its 'm.qzeros' is missing"),
    "groups": ("gptq4", lambda tensors: None, {"group_size": 64}, "expected 2 groups of 64"),
    "g-idx": (
        "gptq4",
        put("m.g_idx", np.full(128, 4, np.int32)),
        {},
        "'m.g_idx': group 4 of 'm.weight', there are 4",
    ),
    "packed-shape": (
        "w4-group",
        put("m.weight_shape", np.array([20, 120])),
        {},
        r"i32 \[20, 16\], expected i32 \[20, 15\] for 4 bits",
    ),
    "no-shape": ("w4-group", without("m.weight_shape"), {}, "'m.weight_shape' is missing"),
    "stray": ("awq", lambda tensors: None, {"quant_method": "mxfp4"}, "does not belong to quant_m"),
    "global": ("nvfp4-modelopt", put("m.weight_scale_2", np.ones(12, np.float32)), {}, "one float"),
    "blocks": (
        "mxfp4-gpt-oss",
        put("m.weight_blocks", np.zeros((2, 10, 3, 8), np.uint8)),
        {},
        "16 bytes in the last axis",
    ),
    "scales": (
        "mxfp4-gpt-oss",
        put("m.weight_scales", np.zeros((2, 10, 4), np.uint8)),
        {},
        r"'m.weight_scales': shape \[2, 10, 4\], expected \[2, 10, 3\]",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_does_not_fit_is_named(data_dir: Path, case: str) -> None:
    good, spoil, changes, message = SPOILT[case]
    tensors, config, _ = build(data_dir, good)
    spoil(tensors)
    with pytest.raises(LoadError, match=message):
        assemble(tensors, read_quantization(wrap({**config, **changes})))


def test_packed_words_need_a_config(data_dir: Path) -> None:
    tensors, _, _ = build(data_dir, "awq")
    with pytest.raises(LoadError, match=r"'m\.qweight' is packed, and no quantization_config"):
        assemble(tensors, None)
