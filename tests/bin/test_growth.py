"""zllm bench --growth: exponents of known growth, and of the oracle's own operations."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from zllm.backend.contract import Op
from zllm.bin import growth, main
from zllm.bin.growth import DECODED, KINDS, OpTimes, exponent, measure

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


def test_dense_attention_grows_faster_than_a_recurrence() -> None:
    lengths = [1024, 2048, 4096]
    dense, kda = (measure(kind, lengths, runs=2)["ops"] for kind in KINDS[:2])
    assert dense["attend"]["prefill_exponent"] > 1.4
    assert 0.7 < kda["delta"]["prefill_exponent"] < 1.3
    assert abs(kda["delta"]["decode_exponent"]) < 0.4 < dense["attend"]["decode_exponent"]


def test_sparse_attention_follows_what_it_chooses() -> None:
    lengths = [1024, 2048, 4096]
    few, many = (measure(kind, lengths, runs=2)["ops"] for kind in KINDS[2:])
    for found in (few, many):
        assert 0.7 < found["attend_latent"]["prefill_exponent"] < 1.3
    # 4 times as many keys; not all of the time is spent on keys.
    ratio = np.divide(many["attend_latent"]["prefill_ms"], few["attend_latent"]["prefill_ms"])
    assert (ratio > 1.5).all()
    assert few["select"]["prefill_exponent"] > 1.3


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
