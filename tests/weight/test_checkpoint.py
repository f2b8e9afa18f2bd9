"""open_checkpoint: every kind of model on disk, what it hands over, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import write_gguf, write_safetensors
from tests.helpers.llama_gguf import as_array, write_llama_gguf
from zllm.errors import LoadError
from zllm.weight.byte_source import BytesSource
from zllm.weight.checkpoint import architectures, open_checkpoint, open_gguf_checkpoint
from zllm.weight.generation import Generation
from zllm.weight.linear_weight import F32, Bf16
from zllm.weight.safetensors import open_safetensors


@pytest.fixture
def folder(data_dir: Path, tmp_path: Path) -> Path:
    """A copy of golden/llama to spoil."""
    return Path(shutil.copytree(data_dir / "golden" / "llama", tmp_path / "llama"))


def edit(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **changes}))


def shard(folder: Path) -> None:
    """Replace the single file by two shards and an index."""
    whole = folder / "model.safetensors"
    tensors = open_safetensors(BytesSource(whole.read_bytes())).tensors
    whole.unlink()
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        held = {name: as_array(tensors[name]) for name in tensors if weight_map[name] == file}
        write_safetensors(folder / file, held)
    edit(folder / "model.safetensors.index.json", weight_map=weight_map)


def test_folder(data_dir: Path) -> None:
    got = open_checkpoint(data_dir / "golden" / "llama")
    assert got.architecture == "llama" and got.config.layers == 3
    assert isinstance(got.tensors["layers.2.down"], F32)
    assert got.tensors["layers.2.down"].shape == (48, 96)
    assert got.metadata["model_type"] == "llama"
    assert got.generation == Generation(eos=(2,), bos=1)
    assert got.size_bytes == 260736
    got.close()


def test_folder_in_bfloat16_with_biases(data_dir: Path) -> None:
    got = open_checkpoint(str(data_dir / "golden" / "llama_rope3"))
    assert isinstance(got.tensors["head"], Bf16)
    assert got.tensors["layers.1.k.bias"].shape == (32,)


def test_every_tensor_holds_its_own_bytes(data_dir: Path) -> None:
    path = data_dir / "golden" / "llama"
    raw = (path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    begin, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    start = len(raw) - 260736
    got = open_checkpoint(path).tensors["layers.1.up"]
    assert bytes(got.data.read()) == raw[start + begin : start + end]


def test_shards_and_one_file_are_equal(folder: Path, data_dir: Path) -> None:
    shard(folder)
    got, want = open_checkpoint(folder), open_checkpoint(data_dir / "golden" / "llama")
    assert got.config == want.config and got.tensors.keys() == want.tensors.keys()
    assert len(got.sources) == 2
    for name, weight in want.tensors.items():
        np.testing.assert_array_equal(as_array(got.tensors[name]), as_array(weight))


def test_safetensors_file_beside_its_config(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert open_checkpoint(folder / "weights.safetensors").config.layers == 3


def test_tokenizer_files(folder: Path) -> None:
    none = open_checkpoint(folder).tokenizer_files
    assert none is not None
    assert (none.tokenizer, none.config, none.chat_template) == (None, None, None)
    edit(folder / "tokenizer.json", model={"type": "BPE"})
    edit(folder / "tokenizer_config.json", eos_token="</s>")
    (folder / "chat_template.jinja").write_text("{{ 'ü' }}", encoding="utf-8")
    got = open_checkpoint(folder).tokenizer_files
    assert got is not None
    assert got.tokenizer == {"model": {"type": "BPE"}}
    assert got.config == {"eos_token": "</s>"}
    assert got.chat_template == "{{ 'ü' }}"


def test_chat_templates_in_files_of_their_own(folder: Path) -> None:
    def found() -> object:
        files = open_checkpoint(folder).tokenizer_files
        assert files is not None
        return files.chat_template

    edit(folder / "chat_template.json", chat_template="old")
    assert found() == "old"
    (folder / "chat_template.jinja").write_text("new")
    assert found() == "new"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert found() == {"default": "new", "tool_use": "tools"}
    (folder / "chat_template.jinja").unlink()
    assert found() == {"tool_use": "tools"}


def test_generation_config_wins_over_config(folder: Path) -> None:
    edit(
        folder / "generation_config.json",
        eos_token_id=[5, 6],
        bos_token_id=None,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1,
    )
    assert open_checkpoint(folder).generation == Generation((5, 6), 1, 0.7, 0.9, 40, 0.05, 1.0)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=None, bos_token_id=7)
    assert open_checkpoint(folder).generation == Generation((), 7)


def test_gguf(folder: Path, tmp_path: Path) -> None:
    says = {
        "tokenizer.ggml.eot_token_id": 9,
        "tokenizer.ggml.eom_token_id": 2,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
    }
    got = open_checkpoint(write_llama_gguf(folder, tmp_path / "m.gguf", says))
    assert got.generation == Generation((2, 9), 1, 0.5, None, 20)
    assert got.tokenizer_files is None
    assert got.metadata["llama.block_count"] == 3
    assert got.size_bytes == 260736


def test_gguf_from_bytes(folder: Path, tmp_path: Path) -> None:
    raw = write_llama_gguf(folder, tmp_path / "m.gguf").read_bytes()
    assert open_gguf_checkpoint(BytesSource(raw)).config.layers == 3


def test_architectures_are_found_by_their_files() -> None:
    assert architectures()["llama"] == "llama"


def spoil_config(**changes: Any) -> Any:
    return lambda folder: edit(folder / "config.json", **changes)


def write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


SPOILT = {
    "no-config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config-text": (write("config.json", "{"), "config.json: not valid JSON"),
    "config-list": (write("config.json", "[]"), "config.json: expected a JSON object, got list"),
    "config-deep": (write("config.json", '{"a":' + "[" * 100_000), "config.json: not valid JSON"),
    "config-binary": (lambda f: (f / "config.json").write_bytes(b"\xff"), "config.json: not UTF-8"),
    "config-huge": (write("config.json", " " * ((1 << 24) + 1)), "at most 16777216 are allowed"),
    "architecture": (
        spoil_config(model_type="rwkv9"),
        "config.json: model_type: got 'rwkv9', supported architectures: .*llama",
    ),
    "architecture-list": (spoil_config(model_type=[]), "model_type: got \\[\\]"),
    "quantised": (
        spoil_config(quantization_config={"quant_method": "hqq"}),
        "config.json: quantization_config: quant_method 'hqq' is not supported",
    ),
    "size": (spoil_config(hidden_size=-1), "llama: hidden_size: got -1"),
    "layers": (spoil_config(num_hidden_layers=4), "'model.layers.3.input_layernorm.weight'"),
    "fewer-layers": (spoil_config(num_hidden_layers=2), "no use for: \\['model.layers.2"),
    "shape": (spoil_config(intermediate_size=95), "shape \\[96, 48\\], the config asks for"),
    "eos": (spoil_config(eos_token_id="2"), "eos_token_id"),
    "generation": (write("generation_config.json", '{"eos_token_id": [-1]}'), "got -1, expected a"),
    "generation-text": (write("generation_config.json", "x"), "generation_config.json: not valid"),
    "temperature": (
        write("generation_config.json", '{"temperature": NaN}'),
        "temperature: got nan",
    ),
    "top-k": (write("generation_config.json", '{"top_k": 1.5}'), "top_k: got 1.5"),
    "tokenizer-text": (write("tokenizer.json", "nope"), "tokenizer.json: not valid JSON"),
    "no-weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors and no"),
    "cut-off": (cut, "model.safetensors: tensor 'model.norm.weight': data ends at"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_spoilt_folder(folder: Path, spoil: Any, message: str) -> None:
    if message.startswith("eos"):
        (folder / "generation_config.json").unlink()
    spoil(folder)
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(str(folder))
    assert str(caught.value).count(str(folder)) == 1


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be opened: No such file"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(LoadError, match="no config"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(LoadError, match="empty; expected a GGUF file"):
        open_checkpoint(tmp_path / "model.gguf")
    with pytest.raises(LoadError, match=r"it holds model\.gguf: name the file"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(LoadError, match="not a model file; expected a GGUF"):
        open_checkpoint(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "general.architecture: got None, supported architectures: .*llama"),
        ({"general.architecture": "rwkv9"}, "general.architecture: got 'rwkv9'"),
        ({"general.architecture": "llama"}, "llama.embedding_length: missing"),
        ({"general.architecture": "llama", "split.count": 3}, "one of 3 parts of a model"),
    ],
)
def test_gguf_refusals(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata, {})
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(str(path))


def test_truncated_gguf(folder: Path, tmp_path: Path) -> None:
    path = write_llama_gguf(folder, tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-32])
    with pytest.raises(LoadError, match="it may be cut off"):
        open_checkpoint(path)


def test_files_are_closed_on_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    from zllm.weight import byte_source

    monkeypatch.setattr(byte_source.FileSource, "close", lambda self: closed.append(self.name))
    edit(folder / "config.json", num_hidden_layers=4)
    with pytest.raises(LoadError):
        open_checkpoint(folder)
    assert str(folder / "model.safetensors") in closed


def test_smollm2(smollm2_path: Path) -> None:
    got = open_checkpoint(smollm2_path)
    assert got.config.tied_embeddings and "head" not in got.tensors
    assert got.config.rope.interleaved and got.config.rope.divisors == ()
    assert (got.config.layers, got.config.heads, got.config.kv_heads) == (30, 9, 3)
    assert len(got.tensors) == 2 + 30 * 9
    assert got.generation.eos == (2,)
    assert np.isfinite(as_array(got.tensors["layers.29.down"])).all()
