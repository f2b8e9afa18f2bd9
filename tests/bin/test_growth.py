"""zllm bench --growth: exponents of known growth, and of the oracle's own operations."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.backend.contract import Op
from zllm.bin import growth, main
from zllm.bin.growth import DECODED, KINDS, OpTimes, exponent, measure

LONG = ("--lengths", "1024,4096", "--runs", "2")
SHORT = ("--lengths", "16,32", "--runs", "1")


def test_exponent_is_fitted_to_the_long_lengths() -> None:
    lengths = [256, 512, 1024, 2048, 4096]
    quadratic = [5.0, 5.0, *(3e-6 * length**2 for length in lengths[2:])]
    assert exponent(lengths, quadratic) == pytest.approx(2)
    assert exponent(lengths, [7.0] * 5) == pytest.approx(0, abs=1e-12)
    assert exponent([256, 1024], [1.0, 2.0]) is None


def test_times_go_to_the_operation_that_took_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 14.0, 16.0])
    monkeypatch.setattr(growth.time, "thread_time", lambda: next(clock))
    times = OpTimes()
    times.restart()
    for name in ("linear", "attend", "linear"):
        times(Op(name, (), ()), [])
    assert dict(times.seconds) == {"linear": 3.0, "attend": 3.0}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_timed_by_its_operations(kind: growth.Kind) -> None:
    found = measure(kind, [24, 48], runs=1)
    assert set(found["ops"]) == set(kind.ops)
    for op in found["ops"].values():
        for phase in ("prefill", "decode"):
            assert len(op[f"{phase}_ms"]) == 2 and min(op[f"{phase}_ms"]) > 0
            assert op[f"{phase}_exponent"] is None
    for index, length in enumerate((24, 48)):
        ops = sum(op["prefill_ms"][index] for op in found["ops"].values())
        assert 0 < ops < 2 * found["prefill_ms_per_token"][index] * length + 1


@pytest.fixture(scope="module")
def ops() -> dict[str, Any]:
    """Operations by kind. One BLAS thread: a second one that waits for a busy core counts too."""
    command = [sys.executable, "-m", "zllm.bin.main", "bench", "--growth", "--json", *LONG]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {kind["name"]: kind["ops"] for kind in json.loads(done.stdout)["kinds"]}


# Measured on a machine that may be busy: the bounds tell T from T², not more.


def test_dense_attention_grows_faster_than_a_recurrence(ops: dict[str, Any]) -> None:
    dense, kda = ops["dense"]["attend"], ops["KDA"]["delta"]
    assert dense["prefill_exponent"] > 1.25
    assert 0.6 < kda["prefill_exponent"] < 1.4
    assert kda["decode_exponent"] < 0.3 < dense["decode_exponent"]


def test_sparse_attention_follows_what_it_chooses(ops: dict[str, Any]) -> None:
    few, many = ops["DSA, k = 64"], ops["DSA, k = 256"]
    for found in (few, many):
        assert 0.6 < found["attend_latent"]["prefill_exponent"] < 1.4
    # 4 times as many keys; not all of the time is spent on keys.
    ratio = np.divide(many["attend_latent"]["prefill_ms"], few["attend_latent"]["prefill_ms"])
    assert (ratio > 1.3).all()
    assert few["select"]["prefill_exponent"] > 1.2


def test_report_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "growth.png"
    assert main.main(["bench", "--growth", *SHORT, "--json", "--plot", str(plot)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lengths"] == [16, 32]
    assert [kind["name"] for kind in report["kinds"]] == [kind.name for kind in KINDS]
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 10_000


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "--growth", *SHORT]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in ("16", "32", "dense (llama)", "attend, prefill", "delta, decode a token", "select"):
        assert word in out


def test_the_tiny_models_see_enough() -> None:
    for kind in KINDS:
        config = {**growth.tiny_model(kind.arch).config, **kind.changes}
        context = config.get("max_position_embeddings") or config["model_max_length"]
        assert context >= 8192 + DECODED + 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--growth", "--lengths", "64,32"], "expected growing numbers"),
        (["--growth", "--lengths", "64,16384"], "at most 8192 tokens, got 16384"),
        (["--growth", "--runs", "0"], "--runs must be at least 1"),
        (["--growth", "--plot", "/no/such/x.png"], "--plot: cannot write /no/such/x.png"),
        (["--plot", "x.png"], "--plot has no meaning without --growth"),
    ],
)
def test_bad_flags_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_a_missing_matplotlib_is_told_before_measuring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("zllm.bin.bench_growth.measure", lambda *args: pytest.fail("measured"))
    assert main.main(["bench", "--growth", "--plot", str(tmp_path / "x.png")]) == 1
    assert "pip install 'zllm[plot]'" in capsys.readouterr().err
