"""Flags of every command that opens an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.bin import logits, main
from zllm.bin.model_flags import add_engine, memory_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("6GiB", 6 << 30),
        ("1.5 gib", 3 << 29),
        ("800MiB", 800 << 20),
        ("6GB", 6 * 10**9),
        ("2k", 2000),
        ("123", 123),
        ("5B", 5),
    ],
)
def test_memory_sizes(text: str, size_bytes: int) -> None:
    assert memory_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "0", "-1GiB", "6 giraffes", "1e9", "nan", "6GiBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write it as in 6GiB"):
        memory_size(text)


def test_defaults_are_the_backend_s() -> None:
    parser = argparse.ArgumentParser()
    add_engine(parser)
    args = parser.parse_args(["--model", "m"])
    assert (args.kv_dtype, args.device_memory, args.context) == (None, None, None)


def test_logits_are_exact_unless_told_otherwise() -> None:
    parser = argparse.ArgumentParser()
    logits.add_arguments(parser)
    needed = ["--model", "m", "--out", "o"]
    assert parser.parse_args(needed).kv_dtype == "f32"
    assert parser.parse_args([*needed, "--kv-dtype", "f16"]).kv_dtype == "f16"


@pytest.mark.vulkan
def test_too_little_memory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--model", str(GOLDEN / "llama"), "--out", str(tmp_path / "l.npy")]
    argv = ["--backend", "webgpu", "--tokens", "1,2", "--device-memory", "100kB"]
    assert main.main(["logits", *where, *argv]) == 1
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    assert err.startswith("zllm: error: ") and "--device-memory allows" in err
