"""zllm inspect: what it tells about models that run, and about one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.files import GgufTensor, write_gguf
from zllm.bin import main
from zllm.weight.gguf_types import TENSOR_TYPES

BLOCKS = {kind.name: kind for kind in TENSOR_TYPES.values()}


def inspect(path: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main.main(["inspect", str(path), "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_smollm2(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(smollm2_path, capsys)
    assert found["architecture"] == "llama" and found["runnable"]
    assert found["parameters"] == 134515008
    assert found["config"]["layers"] == 30 and found["config"]["vocabulary"] == 49152
    assert found["config"]["rope"]["theta"] == 100000
    assert {name: entry["tensors"] for name, entry in found["formats"].items()} == {
        "q4_1": 210,
        "q8_0": 1,
        "f32": 61,
    }
    sizes = [entry["bytes"] for entry in found["formats"].values()]
    assert sum(sizes) == found["weights_bytes"] < smollm2_path.stat().st_size
    assert found["tokenizer"] == {
        "usable": True,
        "kind": "gpt2 smollm",
        "vocabulary": 49152,
        "bos": 1,
        "adds_bos": False,
        "eos": [2],
        "chat_template": True,
    }
    # Keys and values of 30 layers, 3 heads of 64, f32.
    assert found["memory"]["cache_bytes_per_token"] == 2 * 30 * 3 * 64 * 4
    assert found["memory"]["needs"][0]["caches"] == {"kv": (4096 + 16) * 46080}
    assert found["memory"]["needs"][0]["kv_f16"] == (4096 + 16) * 23040


def test_hugging_face_folder(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(data_dir / "cases" / "chain-a", capsys, "--tensors", "--context", "10")
    assert found["tokenizer"]["kind"] == "BPE"
    assert found["tokenizer"]["eos"] == [315, 316]
    assert found["tokenizer"]["chat_template"]
    assert found["generation"] == {"eos": [315, 316]}
    assert found["memory"]["context"] == 10
    # A page of 16 slots holds the 10 tokens, another is scratch.
    assert found["memory"]["needs"][0]["caches"] == {"kv": 32 * 2 * 2 * 16 * 4}
    (embed,) = [tensor for tensor in found["tensors"] if tensor["name"] == "embed"]
    assert embed == {"name": "embed", "format": "f32", "shape": [330, 64], "bytes": 84480}


def test_text(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["inspect", str(data_dir / "golden" / "llama_rope3"), "--tensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:11].strip(): line[12:] for line in lines if not line.startswith(" ")}
    assert rows["runs"] == "yes"
    assert rows["parameters"] == "41,624 in 0.1 MiB"
    assert "layers 2" in rows["sizes"] and "attention_bias yes" in rows["switches"]
    assert "scaling llama3, factor 8" in rows["rope"]
    assert rows["tokenizer"].startswith("not usable: ")
    assert "  layers.1.down.bias  bf16   40" in lines
    assert rows["plan"] == "2 layers: 2A"
    assert "            A  0-1  256 B/token  GQA 4/2 heads of 16" in lines
    assert rows["cache"] == "512 bytes a token"


def test_memory_by_what_holds_it(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(data_dir / "golden" / "llama_rope3"), "--context", "100"]
    assert main.main(["inspect", *argv]) == 0
    short = capsys.readouterr().out
    assert "activations" not in short
    assert main.main(["inspect", *argv, "--memory"]) == 0
    whole = capsys.readouterr().out
    assert whole.startswith(short)
    rows = {line[12:26].strip(): line[26:].split() for line in whole[len(short) :].splitlines()}
    assert rows[""] == ["1", "sequence", "16", "sequences"]
    assert rows["keys, values"] == ["0.1", "MiB", "0.9", "MiB"]
    assert list(rows)[-2:] == ["total packed", "total f32"]


def quantised_gguf(path: Path, format: str) -> Path:
    """A llama of one layer whose projections have a format that may have no codec."""

    def matrix(rows: int) -> GgufTensor:
        kind = BLOCKS[format]
        return format, (rows, 256), bytes(rows * 256 // kind.block_elements * kind.block_bytes)

    vector: GgufTensor = ("f32", (256,), bytes(1024))
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors = {f"blk.0.{part}.weight": matrix(256) for part in parts}
    tensors |= {f"blk.0.{part}.weight": vector for part in ("attn_norm", "ffn_norm")}
    tensors |= {"token_embd.weight": matrix(8), "output_norm.weight": vector}
    metadata = {
        "general.architecture": "llama",
        "general.name": "evil \x1b[2J name",
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 256,
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 128,
    }
    return write_gguf(path, metadata, tensors)


def test_format_without_codec_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quantised_gguf(tmp_path / "m.gguf", "q8_1")
    found = inspect(path, capsys)
    assert not found["runnable"]
    assert found["formats_without_codec"] == ["q8_1"]
    assert main.main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "no: there is no codec for q8_1" in out and "(no codec)" in out
    assert "\x1b" not in out


def test_same_file_in_a_known_format_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(quantised_gguf(tmp_path / "m.gguf", "q8_0"), capsys)["runnable"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("cases/gguf/truncated.gguf", "truncated.gguf"), ("text/blocks.jinja", "not a model file")],
)
def test_unusable_file_is_one_line(
    data_dir: Path, path: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["inspect", str(data_dir / path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
