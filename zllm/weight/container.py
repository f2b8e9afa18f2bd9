"""The tensors of any file or folder under their own names, whether or not it is a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zllm.errors import LoadError
from zllm.weight import json_file, shards
from zllm.weight.byte_source import ByteSource, FileSource
from zllm.weight.gguf import MAGIC
from zllm.weight.gguf_split import open_gguf_path
from zllm.weight.linear_weight import LinearWeight, OneTensor
from zllm.weight.quantization import assemble
from zllm.weight.quantization_config import Quantization, read_quantization


@dataclass(frozen=True, slots=True)
class Container:
    """`tensors` as stored, one by one; `weights` with quantised ones put together.

    `problem`: why that could not be done; `weights` are then the tensors.
    """

    tensors: Mapping[str, OneTensor]
    weights: Mapping[str, LinearWeight]
    sources: tuple[ByteSource, ...]
    problem: LoadError | None = None

    def close(self) -> None:
        for source in self.sources:
            source.close()


def open_container(path: Path) -> Container:
    """Safetensors (file or folder) or GGUF. LoadError if it is neither, or not what it says.

    A file's quantization is described by `NAME.config.json` or `config.json` beside it.
    """
    if path.is_dir() or path.suffix == ".safetensors":
        files = shards.open_folder(path) if path.is_dir() else shards.open_files([path])
        sources = tuple(files.sources)
        try:
            weights = assemble(files.tensors, quantization_beside(path))
        except LoadError as error:
            return Container(files.tensors, files.tensors, sources, error)
        return Container(files.tensors, weights, sources)
    source = FileSource(path)
    magic = bytes(source.read(0, min(4, source.size_bytes)))
    source.close()
    if magic != MAGIC:
        raise LoadError(f"{path}: neither GGUF nor .safetensors")
    gguf = open_gguf_path(path)
    return Container(gguf.tensors, gguf.tensors, gguf.sources)


def quantization_beside(path: Path) -> Quantization | None:
    """What the config of a folder, or beside a file, says. LoadError names the file."""
    folder = path if path.is_dir() else path.parent
    for config in (path.with_suffix(".config.json"), folder / "config.json"):
        found = json_file.read_optional_object(config)
        if found is not None:
            break
    says = json_file.read_optional_object(folder / "hf_quant_config.json")
    try:
        if says is None or (found or {}).get("quantization_config") is not None:
            return read_quantization(found or {})
        return read_quantization({"quantization_config": {"quant_method": "modelopt", **says}})
    except LoadError as error:
        raise LoadError(f"{config}: {error}") from None
