"""GGUF models in one file or in several, `NAME-00001-of-0000N.gguf` (llama.cpp, gguf-split)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zllm.errors import LoadError
from zllm.weight.byte_source import ByteSource, FileSource
from zllm.weight.gguf import Gguf, open_gguf
from zllm.weight.linear_weight import OneTensor

# llama.cpp, llama_split_path: parts count from 1, five digits.
PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The parts of a model as one: the first part's metadata, everyone's tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, OneTensor]
    sources: tuple[ByteSource, ...]

    def close(self) -> None:
        for source in self.sources:
            source.close()


def open_gguf_path(path: Path) -> GgufModel:
    """A GGUF file with the other parts of its model, whichever part `path` is.

    LoadError names every part that is missing, and a part that does not belong to the others.
    """
    sources: list[ByteSource] = [FileSource(path)]
    try:
        first = open_gguf(sources[0])
        if _count(first) == 1:
            return GgufModel(first.metadata, first.tensors, tuple(sources))
        paths = part_paths(path, _count(first))
        sources[0].close()
        sources.clear()
        for part in paths:
            sources.append(FileSource(part))
        return open_gguf_parts(sources)
    except BaseException:
        for source in sources:
            source.close()
        raise


def open_gguf_parts(sources: Sequence[ByteSource]) -> GgufModel:
    """All parts of a model in order, or its single file. LoadError unless they belong together."""
    parts = [open_gguf(source) for source in sources]
    tensors: dict[str, OneTensor] = {}
    for number, part in enumerate(parts):
        _check_place(part, number, len(parts))
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise LoadError(f"{part.source.name}: tensor {name!r} is already in another part")
            tensors[name] = tensor
    total = parts[0].metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise LoadError(
            f"{parts[0].source.name}: split.tensors.count is {total!r}, the parts hold"
            f" {len(tensors)} tensors"
        )
    return GgufModel(parts[0].metadata, tensors, tuple(sources))


def part_paths(path: Path, count: int) -> list[Path]:
    """The `count` parts beside one of them. LoadError names those that are missing."""
    named = PART_NAME.fullmatch(path.name)
    if named is None or int(named["count"]) != count:
        raise LoadError(
            f"{path}: one of {count} parts of a model, but its name does not end in"
            f" -00001-of-{count:05}.gguf, so the others cannot be found"
        )
    paths = [
        path.with_name(f"{named['prefix']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise LoadError(f"{path}: parts are missing: {', '.join(missing[:5])}{more}")
    return paths


def _check_place(part: Gguf, number: int, count: int) -> None:
    if _count(part) != count:
        raise LoadError(
            f"{part.source.name}: split.count is {_count(part)}, the model is opened as {count}"
            f" part{'s' if count > 1 else ''}"
        )
    found = part.metadata.get("split.no", 0)
    if found != number:
        raise LoadError(f"{part.source.name}: split.no is {found!r}, expected {number}")


def _count(part: Gguf) -> int:
    """Parts of the model that this file says it belongs to."""
    found = part.metadata.get("split.count", 1)
    # u16 in llama.cpp; 0 is written by tools that merge.
    if type(found) is not int or not 0 <= found <= 99_999:
        raise LoadError(f"{part.source.name}: split.count: got {found!r}, expected a count")
    return max(found, 1)
