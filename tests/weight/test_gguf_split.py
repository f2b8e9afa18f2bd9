"""Models split over several GGUF files: opened from any part, checked, missing parts named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import GgufTensor, write_gguf
from tests.helpers.llama_gguf import as_array, write_llama_gguf
from zllm.errors import LoadError
from zllm.weight.byte_source import FileSource
from zllm.weight.checkpoint import open_checkpoint, open_gguf_checkpoint
from zllm.weight.gguf import open_gguf
from zllm.weight.gguf_split import open_gguf_path

PARTS = 3


def split(whole: Path, folder: Path) -> list[Path]:
    """As llama.cpp's gguf-split does: all metadata in the first part, tensors in turn."""
    gguf = open_gguf(FileSource(whole))
    paths = []
    for number in range(PARTS):
        held: dict[str, GgufTensor] = {}
        for name, weight in list(gguf.tensors.items())[number::PARTS]:
            held[name] = (weight.format, weight.shape, bytes(weight.data.read()))
        says: dict[str, Any] = {"split.no": number, "split.count": PARTS}
        says["split.tensors.count"] = len(gguf.tensors)
        metadata = {**gguf.metadata, **says} if number == 0 else says
        path = folder / f"tiny-{number + 1:05}-of-{PARTS:05}.gguf"
        paths.append(write_gguf(path, metadata, held))
    return paths


@pytest.fixture
def parts(data_dir: Path, tmp_path: Path) -> list[Path]:
    whole = write_llama_gguf(data_dir / "golden" / "llama", tmp_path / "whole.gguf")
    return split(whole, tmp_path)


@pytest.mark.parametrize("number", range(PARTS))
def test_any_part_opens_the_whole(parts: list[Path], number: int) -> None:
    want = open_checkpoint(parts[0].with_name("whole.gguf"))
    got = open_checkpoint(parts[number])
    assert got.config == want.config and got.tensors.keys() == want.tensors.keys()
    assert len(got.sources) == PARTS and got.size_bytes == want.size_bytes
    for name, weight in want.tensors.items():
        np.testing.assert_array_equal(as_array(got.tensors[name]), as_array(weight))
    got.close()


def test_parts_from_anywhere(parts: list[Path]) -> None:
    sources = [FileSource(path) for path in parts]
    assert open_gguf_checkpoint(*sources).config.layers == 3
    with pytest.raises(LoadError, match=r"split\.count is 3, the model is opened as 1 part"):
        open_gguf_checkpoint(FileSource(parts[0]))


def test_missing_parts_are_named(parts: list[Path]) -> None:
    parts[1].unlink()
    parts[2].unlink()
    message = "parts are missing: tiny-00002-of-00003.gguf, tiny-00003-of-00003.gguf$"
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(parts[0])
    assert str(caught.value).startswith(str(parts[0]))


def test_name_without_number(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(LoadError, match="one of 3 parts of a model, but its name does not end in"):
        open_checkpoint(renamed)


def spoil(part: Path, tensors: dict[str, GgufTensor], **changes: Any) -> None:
    says = {"split.no": 1, "split.count": 3, "split.tensors.count": 29}
    write_gguf(part, says | {f"split.{key}": value for key, value in changes.items()}, tensors)


F32_OF_4 = ("f32", (1,), bytes(4))


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({}, {"no": 2}, "00002-of-00003.gguf: split.no is 2, expected 1"),
        ({}, {"count": 4}, "00002-of-00003.gguf: split.count is 4, the model is opened as 3 parts"),
        ({}, {"count": "3"}, "split.count: got '3', expected a count"),
        ({}, {}, "split.tensors.count is 29, the parts hold"),
        ({"output_norm.weight": F32_OF_4}, {}, "'output_norm.weight' is already in another part"),
    ],
    ids=["order", "count", "type", "too-few", "twice"],
)
def test_parts_that_do_not_belong_together(
    parts: list[Path], tensors: dict[str, GgufTensor], changes: dict[str, Any], message: str
) -> None:
    if tensors:  # of the first or third part, whichever has it
        tensors = {next(iter(open_gguf(FileSource(parts[0])).tensors)): F32_OF_4}
        message = f"{next(iter(tensors))!r} is already in another part"
    spoil(parts[1], tensors, **changes)
    with pytest.raises(LoadError, match=message):
        open_checkpoint(parts[0])


def test_single_file_says_one_part(data_dir: Path, tmp_path: Path) -> None:
    shutil.copy(data_dir / "cases" / "gguf" / "ok.gguf", tmp_path / "a.gguf")
    model = open_gguf_path(tmp_path / "a.gguf")
    assert len(model.sources) == 1 and json.dumps(sorted(model.tensors)) == '["t"]'
    model.close()
