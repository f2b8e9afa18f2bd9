"""Small cases of every op that a model of any architecture records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import Op, PlanKey, Weight
from zllm.backend.oracle.backend import OracleBackend
from zllm.backend.selftest.case import LANES, Case
from zllm.backend.selftest.cases import build, case_of
from zllm.backend.selftest.random_weight import random_weight
from zllm.backend.selftest.reduce import fewer
from zllm.backend.selftest.row_entries import WEIGHT_FORMATS
from zllm.backend.selftest.run import check
from zllm.model import Model
from zllm.quant.weights import decode_all
from zllm.runtime.survey import survey

FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
KEYS = {"decode": PlanKey(3, 3, 64, "token"), "prefill": PlanKey(64, 1, 64, "token")}


def oracle() -> OracleBackend:
    return OracleBackend(lanes=LANES)


def recorded(folder: str, key: PlanKey) -> dict[str, Op]:
    """One op of each name and spec."""
    checkpoint = Model(GOLDEN / folder).checkpoint
    found = survey(checkpoint.architecture, checkpoint.config, checkpoint.tensors)
    return {f"{op.name} {op.spec}": op for op in found.ops(key.rows, key.seqs)}


def size_bytes(case: Case) -> int:
    return sum(part.size_bytes for stored in case.weights.values() for part in stored.parts)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_recorded_op_has_a_small_case(folder: str, kind: str) -> None:
    key = KEYS[kind]
    for op in recorded(folder, key).values():
        case = case_of(op, key, {})
        outcome = check(case, oracle(), oracle())
        assert outcome.right, outcome.message
        assert op.name in case.ops
        assert size_bytes(case) < 1 << 20, f"{case.name}: {size_bytes(case)} bytes"


def big(name: str, folder: str) -> Op:
    return next(op for op in recorded(folder, KEYS["prefill"]).values() if op.name == name)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("linear", "llama"), ("gated_linear", "llama"), ("embed", "llama"), ("rms_norm", "llama")],
)
def test_wide_ops_become_small_and_keep_their_remainders(name: str, folder: str) -> None:
    op = big(name, folder)

    def widened(x: object) -> object:
        if isinstance(x, Weight):
            shape = tuple(4096 + n for n in x.shape)
            rows = tuple(4096 // len(x.parts) + n for n in x.parts)
            return Weight(x.name, shape, rows if len(x.shape) > 1 else shape)
        return None if x is None else replace(x, shape=(x.shape[0], 4096 + x.shape[1]))  # type: ignore[attr-defined,type-var,call-overload]

    wide = replace(op, ins=tuple(map(widened, op.ins)), outs=tuple(map(widened, op.outs)))  # type: ignore[arg-type]
    case = case_of(wide, KEYS["prefill"], {})
    assert size_bytes(case) < 1 << 20
    assert check(case, oracle(), oracle()).right


def test_counts_keep_their_remainders() -> None:
    assert fewer(500, 256, 256) == 500
    assert [fewer(n, 256, 256) for n in (512, 577, 4096, 4097)] == [256, 321, 256, 257]


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
def test_random_weights_decode_to_numbers_near_one(format: str) -> None:
    values = decode_all(random_weight(np.random.default_rng(3), format, (24, 256)))
    assert values.shape == (24, 256) and np.isfinite(values).all()
    assert 0.1 < np.abs(values).mean() < 2 and np.abs(values).max() < 50


def test_the_same_name_gives_the_same_numbers() -> None:
    op = big("linear", "llama")
    first, second, other = (build(op, ((3,),), name) for name in ("a", "a", "b"))

    def numbers(case: Case) -> list[bytes]:
        return [
            bytes(part.data.read()) for stored in case.weights.values() for part in stored.parts
        ]

    assert numbers(first) == numbers(second) != numbers(other)
