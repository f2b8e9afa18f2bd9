"""What launchers refuse, which norms are folded, the rules of WGSL files. Needs no device."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op, Value, Weight
from zllm.backend.webgpu.attention import FULL_GROUPS, MAX_SPLITS, split_count
from zllm.backend.webgpu.device import DeviceInfo
from zllm.backend.webgpu.launch import fuse, missing
from zllm.backend.webgpu.product import NormedSpec
from zllm.linear import LinearSpec
from zllm.norm import RmsNormSpec
from zllm.rope import RotateSpec
from zllm.sampling import SampleSpec

GPU = DeviceInfo("gpu", False, frozenset(), 0, 1 << 27, 1 << 28, 65535, 16384, 256)
CPU = DeviceInfo("cpu", True, frozenset(), 0, 1 << 27, 1 << 28, 65535, 16384, 256)

W = Weight("w", (8, 8), (8,))
NORM = Weight("norm", (8,), (8,))


def value(id: int) -> Value:
    return Value(id, (1, 8))


def heads(head_size: int, rotated: int) -> GqaSpec:
    return GqaSpec(2, 1, head_size, 1.0, rotated)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Op("convolve", (), (value(0),)), "no WGSL kernel"),
        (Op("gated", (value(0), value(1)), (value(2),), GatedSpec("relu")), "'relu'"),
        (Op("attend", (value(0),), (value(1),), heads(6, 6)), "head size 6"),
        (Op("attend", (value(0),), (value(1),), heads(260, 4)), "head size 260"),
        (Op("attend", (value(0),), (Value(1, (70000, 8)),), heads(8, 8)), "70000 rows"),
        (Op("rope_append", (), (value(1),), heads(8, 10)), "rotated 10"),
        (Op("rope", (), (value(1),), RotateSpec(1, 8, 6, 4, False)), "from 6 on"),
        (Op("sample", (value(0),), (), SampleSpec(1 << 24, True, -1)), "vocabulary"),
    ],
    ids=lambda x: x.name if isinstance(x, Op) else "",
)
def test_refusals_say_why(op: Op, words: str) -> None:
    reason = missing(op, GPU)
    assert reason is not None and words in reason


def block() -> list[Op]:
    """norm → product, norm → gated product with the norm's input as residual."""
    return [
        Op("rms_norm", (value(0), NORM), (value(1),), RmsNormSpec(0.5)),
        Op("linear", (value(1), W, None, None), (value(2),)),
        Op("rms_norm", (value(2), NORM), (value(3),), RmsNormSpec(0.25, 1.0)),
        Op("gated_linear", (value(3), W, None), (value(4),), GatedSpec("silu")),
        Op("linear", (value(4), W, None, value(2)), (value(5),)),
    ]


def test_norms_fold_into_the_products_that_read_them() -> None:
    assert fuse(block(), GPU) == (
        Op(
            "norm_linear",
            (value(0), NORM, W, None, None),
            (value(2),),
            NormedSpec(RmsNormSpec(0.5), None),
        ),
        Op(
            "norm_gated_linear",
            (value(2), NORM, W, None),
            (value(4),),
            NormedSpec(RmsNormSpec(0.25, 1.0), GatedSpec("silu")),
        ),
        Op("linear", (value(4), W, None, value(2)), (value(5),)),
    )


def test_a_factor_is_kept_and_a_norm_of_each_head_stays() -> None:
    """The second reads heads of 4 numbers: no product's mean square is theirs."""
    ops = [
        Op("rms_norm", (value(0), NORM), (value(1),), RmsNormSpec(0.5)),
        Op("linear", (value(1), W, None, None), (value(2),), LinearSpec(3.0)),
        Op("rms_norm", (value(2), Weight("head", (4,), (4,))), (value(3),), RmsNormSpec(0.5)),
        Op("linear", (value(3), W, None, None), (value(4),)),
    ]
    spec = NormedSpec(RmsNormSpec(0.5), LinearSpec(3.0))
    folded = Op("norm_linear", (value(0), NORM, W, None, None), (value(2),), spec)
    assert fuse(ops, GPU) == (folded, *ops[2:])


def test_norms_stay_on_software_adapters() -> None:
    assert fuse(block(), CPU) == tuple(block())


def test_a_norm_that_something_else_reads_stays() -> None:
    ops = [
        Op("rms_norm", (value(0), NORM), (value(1),), RmsNormSpec(0.5)),
        Op("linear", (value(1), W, None, value(1)), (value(2),)),
        Op("rms_norm", (value(2), NORM), (value(3),), RmsNormSpec(0.5)),
        Op("linear", (value(3), W, None, None), (value(4),)),
        Op("last_rows", (value(3),), (value(5),)),
    ]
    assert fuse(ops, GPU) == tuple(ops)


def test_splits_fill_a_gpu_and_no_more() -> None:
    assert split_count(256, 1, 64) == 1
    assert split_count(1024, 9, 256) == 4
    assert split_count(1 << 20, 9, 64) == FULL_GROUPS // 9
    assert split_count(1 << 20, 1, 64) == MAX_SPLITS
    assert split_count(1 << 20, 2 * FULL_GROUPS, 64) == 1


WGSL_FILES = [
    file for file in resources.files("zllm.kernel.wgsl").iterdir() if file.name.endswith(".wgsl")
]


@pytest.mark.parametrize("file", WGSL_FILES, ids=lambda file: file.name)
def test_wgsl_has_no_directive_and_says_what_it_is(file: resources.abc.Traversable) -> None:
    """Drivers put their own directives before the joined text, where alone they may stand."""
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(enable|requires|diagnostic)\b", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100
    bindings = [int(n) for n in re.findall(r"@binding\((\d+)\)", text)]
    assert all(n < 8 for n in bindings)
