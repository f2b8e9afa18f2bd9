"""The safetensors of a Hugging Face folder: one file, or shards that an index names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zllm.errors import LoadError
from zllm.weight.byte_source import ByteSource, FileSource
from zllm.weight.json_file import read_object
from zllm.weight.linear_weight import OneTensor
from zllm.weight.safetensors import open_safetensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TensorFiles:
    """Tensors out of one or more files."""

    def __init__(self) -> None:
        self.sources: list[ByteSource] = []
        self.tensors: dict[str, OneTensor] = {}

    def add(self, path: Path) -> dict[str, OneTensor]:
        """Open a file and take its tensors in. LoadError if another file has one of them."""
        source = FileSource(path)
        self.sources.append(source)
        found = open_safetensors(source).tensors
        for name in found:
            if name in self.tensors:
                raise LoadError(f"{path}: tensor {name!r} is already in another shard")
        self.tensors.update(found)
        return found

    def close(self) -> None:
        for source in self.sources:
            source.close()


def open_folder(folder: Path) -> TensorFiles:
    """The single file, else the shards of the index; LoadError if there is neither."""
    if (folder / SINGLE).exists():
        return open_files([folder / SINGLE])
    if (folder / INDEX).exists():
        return open_index(folder / INDEX)
    raise LoadError(f"{folder}: no {SINGLE} and no {INDEX}")


def open_files(paths: list[Path]) -> TensorFiles:
    """All tensors of the files."""
    files = TensorFiles()
    try:
        for path in paths:
            files.add(path)
    except BaseException:
        files.close()
        raise
    return files


def open_index(path: Path) -> TensorFiles:
    """The shards that an index names; every name is checked before any of them is opened.

    LoadError on a name that leaves the folder, a shard that is missing, a tensor that is in another
    shard than the index says, or twice.
    """
    weight_map = _weight_map(path)
    shards = {name: _shard_path(path, name) for name in dict.fromkeys(weight_map.values())}
    for name, shard in shards.items():
        if not shard.is_file():
            raise LoadError(f"{path}: shard {name!r} is missing")
    files = TensorFiles()
    try:
        held = {name: files.add(shard) for name, shard in shards.items()}
        for tensor, name in weight_map.items():
            if tensor not in held[name]:
                raise LoadError(f"{path}: tensor {tensor!r} is not in shard {name!r}")
    except BaseException:
        files.close()
        raise
    return files


def _weight_map(path: Path) -> dict[str, str]:
    found: Any = read_object(path, unique_keys=True).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise LoadError(f"{path}: weight_map: expected an object of tensor names and shard names")
    for tensor, name in found.items():
        if not isinstance(name, str):
            raise LoadError(f"{path}: weight_map: {tensor!r}: got {name!r}, expected a file name")
    return found


def _shard_path(index: Path, name: str) -> Path:
    """The shard's path. Nothing is opened; names and links that leave the folder are refused."""
    outside = f"{index}: shard {name!r} is not a file name inside the model folder"
    parts = name.split("/")
    # Also a backslash or a drive, which only some platforms take for path syntax.
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise LoadError(outside)
    if "\\" in name or ":" in name:
        raise LoadError(outside)
    path = index.parent.joinpath(*parts)
    target = path.resolve()
    if not any(target.is_relative_to(folder) for folder in _allowed_folders(index.parent)):
        raise LoadError(f"{outside}: it is a link to {target}")
    return path


def _allowed_folders(folder: Path) -> list[Path]:
    """The model folder; in Hugging Face's cache also the blobs that snapshots link to."""
    home = folder.resolve()
    cached = home.parent.name == "snapshots"
    return [home, home.parent.parent / "blobs"] if cached else [home]
