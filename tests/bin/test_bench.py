"""zllm bench: figures that fit each other, measured through the engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.bin import bench_runs, main
from zllm.bin.bench_products import Products
from zllm.bin.bench_traffic import decode_traffic
from zllm.embedded import Engine

SMALL = ("--prompt-tokens", "20", "--decode-prompt", "8", "--new-tokens", "6", "--runs", "3")


@pytest.fixture
def model(data_dir: Path) -> Path:
    return data_dir / "golden" / "llama"


def bench(model: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    flags = ["--model", str(model), "--backend", "oracle", "--json", *SMALL]
    assert main.main(["bench", *flags, *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_figures(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(model, capsys)
    assert (report["backend"], report["batch"], report["runs"]) == ("oracle", 1, 3)
    assert report["decode_context"] == [8, 14]
    for name in ("prefill_tok_s", "decode_tok_s"):
        rates = report[name]
        assert rates["best"] == max(rates["all"]) >= rates["median"] > 0
        assert len(rates["all"]) == 3
    best = report["first_token_s"]["20"]["best"]
    assert report["prefill_tok_s"]["best"] == pytest.approx(20 / best)
    assert report["host_ms_per_round"] is None
    assert report["memory"]["weights"] > 0 and report["load_s"] > 0
    assert report["peak_rss_bytes"] > report["memory"]["weights"]
    assert "products" not in report


def test_traffic_is_that_of_the_round(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(model, capsys)
    with Engine(model=model, backend="oracle") as engine:
        config = engine.model.checkpoint.config
        tensors = engine.model.checkpoint.tensors
    used = {name: w for name, w in tensors.items() if name != "embed" or config.tied_embeddings}
    elements = {name: math.prod(w.shape) for name, w in used.items()}
    assert report["weight_bytes_per_round"] == 4 * sum(elements.values())
    products = sum(size for name, size in elements.items() if len(used[name].shape) == 2)
    seconds = report["first_token_s"]["20"]["best"]
    assert report["prefill_tflop_s"] == pytest.approx(2e-12 * products * 20 / seconds)
    assert report["copy_bytes_per_s"] is None and report["share"] is None


def test_experts_are_read_as_often_as_they_are_chosen(data_dir: Path) -> None:
    with Engine(model=data_dir / "golden" / "qwen3_moe", backend="oracle") as engine:
        backend: Any = engine.backend
        config = engine.model.checkpoint.config
        one, four = (decode_traffic(engine, seqs) for seqs in (1, 4))
        banks = sum(w.size_bytes for name, w in backend.weights.items() if ".experts." in name)
    share = config.chosen_experts / config.experts
    assert 0 < share < 1 and banks > 0
    rest = one.weight_bytes - share * banks
    assert four.weight_bytes == pytest.approx(rest + (1 - (1 - share) ** 4) * banks)
    assert four.products == one.products < one.weight_bytes / 4


@pytest.mark.vulkan
def test_share_of_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--random-shape", "smollm2", "--layers", "1", "--backend", "webgpu", "--json"]
    assert main.main(["bench", *flags, *SMALL, "--batch", "2", "--decode-contexts", "8,24"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "smollm2, random q4_1 weights"
    bandwidth, rate = report["copy_bytes_per_s"], report["decode_tok_s"]["best"]
    assert report["share"] == pytest.approx(report["weight_bytes_per_round"] * rate / 2 / bandwidth)
    first, second = report["contexts"]
    assert (first["context"], second["context"]) == (8, 24)
    more = second["ms_per_round"] - first["ms_per_round"]
    read = 1000 * (second["cache_bytes"] - first["cache_bytes"]) / bandwidth
    assert second["cost_ratio"] == pytest.approx(more / read)
    assert (second["cache_bytes"] - first["cache_bytes"]) % (2 * 16 * 2 * 3 * 64 * 2) == 0


def test_longer_contexts_on_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--random-shape", "smollm2", "--layers", "1", "--backend", "oracle"]
    small = ["--prompt-tokens", "4", "--new-tokens", "2", "--runs", "1"]
    assert main.main(["bench", *flags, *small, "--decode-contexts", "16,4100"]) == 0
    rows = {line[:12].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert rows["at 4100"].endswith(" ms a round")
    assert "(packed weights)" in rows["model"] and "MiB of weights a round" in rows["reads"]
    assert rows["computes"].endswith("TFLOP/s in prefill")


def test_products_are_compared_pair_by_pair(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench(model, capsys, "--products")
    for name, tokens in (("prefill", 20), ("decode", 5)):
        ratio = report["products"][name]
        assert len(ratio["pairs"]) == 3 and ratio["best_pair"] == min(ratio["pairs"])
        assert ratio["ratio"] == pytest.approx(ratio["engine_s"] / ratio["products_s"])
        # The engine does the products and more.
        assert ratio["ratio"] > 1
        assert report[f"{name}_tok_s"]["best"] == pytest.approx(tokens / ratio["engine_s"])


def test_products_are_the_model_s_own(model: Path) -> None:
    with Engine(model=model, backend="oracle") as engine:
        config = engine.model.checkpoint.config
        products = Products(engine, 7)
        rows_and_shapes = [(len(x), w.shape[::-1], out.shape) for x, w, out in products._calls]
        width, heads = config.width, config.head_size * config.heads
        kv = config.head_size * config.kv_heads
        layer = [
            (7, (heads + 2 * kv, width), (7, heads + 2 * kv)),
            (7, (width, heads), (7, width)),
            (7, (2 * config.ffn_width, width), (7, 2 * config.ffn_width)),
            (7, (width, config.ffn_width), (7, width)),
        ]
        head = (1, (config.vocabulary, width), (1, config.vocabulary))
        assert rows_and_shapes == layer * config.layers + [head]
        x, w, out = products._calls[-1]
        out[:] = np.nan
        assert products.seconds(1) > 0
        np.testing.assert_allclose(out, x @ w, rtol=1e-4, atol=1e-4)


def test_batch_decodes_together(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(model, capsys, "--batch", "3")
    assert report["batch"] == 3
    with Engine(model=model, backend="oracle") as engine:
        prompts = bench_runs.Prompts(engine.model.vocabulary)
        run = bench_runs.decode(engine, [prompts.take(8) for _ in range(3)], 6)
    assert (run.tokens, run.sequences) == (15, 3)


def test_no_prompt_reuses_what_another_left_in_the_cache(model: Path) -> None:
    with Engine(model=model, backend="oracle") as engine:
        prompts = bench_runs.Prompts(engine.model.vocabulary)
        for _ in range(5):
            answer = engine.generate({"tokens": prompts.take(16), "max_tokens": 1})
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--backend", "oracle", "--products", *SMALL]
    assert main.main(["bench", *flags]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in ("prefill 20", "decode", "first token", "memory", "× the products alone"):
        assert word in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--runs", "0"], "--runs must be at least 1, got 0"),
        (["--new-tokens", "1"], "--new-tokens must be at least 2"),
        (["--products", "--batch", "2"], "--products compares one sequence"),
        (["--products", "--resident", "packed"], "--products needs --backend oracle"),
        (["--context", "16"], "the prompt has 20 tokens"),
        (["--random-shape", "smollm2"], "give --model or --random-shape, not both"),
        (["--format", "f16"], "--format has no meaning without --random-shape"),
        (["--layers", "2"], "--layers has no meaning without --random-shape"),
        (["--decode-contexts", "8,4"], "--decode-contexts 8,4: expected growing numbers"),
        (["--decode-contexts", "x"], "--decode-contexts: 'x' is no token id"),
        (["--kl", "oracle", "--random-shape", "smollm2"], "--random-shape has no meaning with"),
    ],
)
def test_bad_flags_are_one_line(
    model: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(model), "--backend", "oracle", *SMALL, *argv]
    assert main.main(["bench", *flags]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
