"""zllm chat with a prompt: what it prints, what it refuses, what a program may read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from zllm.bin import main

MODEL_FLAGS = ("--backend", "oracle", "--temperature", "0")


@pytest.fixture
def chain(data_dir: Path) -> Path:
    return data_dir / "cases" / "chain-a"


def run(model: Path, *argv: str) -> int:
    return main.main(["chat", "--model", str(model), *MODEL_FLAGS, *argv])


def give_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_prompt_is_answered_on_stdout(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chain, "hi 1") == 0
    assert capsys.readouterr() == (" ok\U0001f600!!\n", "")


def test_stdin_is_the_prompt(
    chain: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_input(monkeypatch, b"\xff hi 3\n")
    assert run(chain, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["choices"][0]["message"]["content"] == " alpha beta gamma delta"
    assert answer["usage"]["prompt_tokens"] == 8  # user, three bytes of U+FFFD, " hi 3"


def test_json_is_openai_shaped(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--json", "--n", "2", "--logprobs", "--return-token-ids", "--max-tokens", "2", "hi 3"]
    assert run(chain, *argv) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["object"] == "chat.completion"
    for choice in answer["choices"]:
        assert choice["message"] == {"role": "assistant", "content": " alpha be"}
        assert choice["finish_reason"] == "length"
        assert choice["token_ids"] == [265, 267]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [" alpha", " be"]
    assert answer["usage"]["completion_tokens"] == 4


def test_sampling_flags_reach_the_engine(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chain, "--stop", "gamma", "--stop", "delta", "hi 3") == 0
    assert capsys.readouterr().out == " alpha beta \n"
    assert run(chain, "--logit-bias", '{"293": -100}', "hi 6") == 0
    assert capsys.readouterr().out == " green\n"
    assert run(chain, "--frequency-penalty", "0.6", "--max-tokens", "6", "0") == 0
    assert capsys.readouterr().out == " go go up go up go\n"  # case A11


def test_seed_repeats_an_answer(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = set()
    for _ in range(2):
        for seed in range(8):
            assert run(chain, "--temperature", "1", "--seed", str(seed), "hi 6") == 0
            outs.add((seed, capsys.readouterr().out))
    assert len(outs) == 8
    assert len({out for _, out in outs}) > 1


def test_system_message_is_first(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chain, "--json", "--system", "ab", "hi 1") == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == 8


def test_config_file_gives_flags(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "chat.yaml"
    config.write_text("max_tokens: 1\nignore-eos: true\nstop: [zz]\n")
    assert run(chain, "--config", str(config), "hi 3") == 0
    assert capsys.readouterr().out == " alpha\n"


def test_stats_are_on_stderr(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chain, "--stats", "hi 3") == 0
    out, err = capsys.readouterr()
    assert out == " alpha beta gamma delta\n"
    loaded, stats = err.splitlines()
    assert loaded.startswith("loaded in ") and loaded.endswith(" on oracle")
    assert stats.startswith("prompt 5 tokens, 0 cached · first token 0.")
    assert " · 7 tokens at " in stats and "memory weights" in stats


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([""], "the prompt is empty"),
        ([" \n"], "the prompt is empty"),
        (["x" * 64], "the prompt has 65 tokens, which leaves no room in a context of 64"),
        (["--temperature", "-1", "hi"], "temperature must be a number at least 0"),
        (["--top-p", "nan", "hi"], "top_p must be a number"),
        (["--logit-bias", "{", "hi"], "--logit-bias is no JSON object"),
        (["--logit-bias", '{"x": 1}', "hi"], "logit_bias must map token ids"),
        (["--n", "2", "hi"], "--n needs --json"),
        (["--context", "1", "hi"], "--context must be at least 2, got 1"),
    ],
)
def test_bad_input_is_one_line(
    chain: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(chain, *argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_empty_stdin_is_one_line(
    chain: Path,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_input(monkeypatch, data)
    assert run(chain) == 1
    assert capsys.readouterr() == (
        "",
        "zllm: error: standard input is empty: give a PROMPT, or start on a terminal\n",
    )


@pytest.mark.parametrize("model", ["golden/llama", "nothing", "cases/gguf/truncated.gguf"])
def test_unusable_model_is_one_line(
    data_dir: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data_dir / model, "hi") == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and model.rpartition("/")[2] in err
