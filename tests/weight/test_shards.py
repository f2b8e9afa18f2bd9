"""Sharded folders: what an index may name, and that nothing outside is ever opened."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import write_safetensors
from zllm.errors import LoadError
from zllm.weight.shards import open_folder, open_index

A = np.array([1, 2], np.float32)
B = np.array([3], np.float32)
opened: list[str] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event == "open":
        opened.append(str(arguments[0]))


@pytest.fixture(scope="module")
def _audit() -> None:
    sys.addaudithook(_record)  # hooks cannot be removed; it is idle while `opened` is None


@pytest.fixture
def files_opened(_audit: None) -> Any:
    global opened
    opened = []
    yield opened
    opened = None


def write_index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


@pytest.mark.parametrize("name", ["parent", "dotted", "backslash", "absolute"])
def test_case_a03_names_that_leave_the_folder(
    data_dir: Path, files_opened: list[str], name: str
) -> None:
    folder = data_dir / "cases" / "index" / "model"
    index = folder / f"{name}.index.json"
    entry = json.loads(index.read_text())["weight_map"]["w"]
    files_opened.clear()

    with pytest.raises(LoadError, match="not a file name inside the model folder") as caught:
        open_index(index)

    assert repr(entry) in str(caught.value)
    assert str(index) in files_opened  # the hook works
    assert not [path for path in files_opened if path.endswith((".safetensors", "hostname"))]


def test_case_a03_missing_shard(data_dir: Path) -> None:
    with pytest.raises(LoadError, match=r"shard 'shard-2\.safetensors' is missing"):
        open_index(data_dir / "cases" / "index" / "model" / "missing.index.json")


@pytest.mark.parametrize(
    "name", ["", ".", "a//b", "./a.safetensors", "C:w.safetensors", "a\0b", "a/", "a\n", "a/../b"]
)
def test_other_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadError, match="not a file name inside"):
        open_index(write_index(tmp_path, {"a": name}))


def test_link_out_of_the_folder(tmp_path: Path, files_opened: list[str]) -> None:
    outside = write_safetensors(tmp_path / "outside.safetensors", {"a": A})
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "s.safetensors").symlink_to(outside)
    (folder / "sub").symlink_to(tmp_path)
    files_opened.clear()
    for name in ("s.safetensors", "sub/outside.safetensors"):
        with pytest.raises(LoadError, match="it is a link to"):
            open_index(write_index(folder, {"a": name}))
    assert str(outside) not in files_opened


def test_links_of_the_hugging_face_cache(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    folder = tmp_path / "snapshots" / "abcd"
    blob.parent.mkdir()
    folder.mkdir(parents=True)
    write_safetensors(blob, {"a": A})
    (folder / "s.safetensors").symlink_to("../../blobs/0123")
    assert list(open_index(write_index(folder, {"a": "s.safetensors"})).tensors) == ["a"]


def test_shards_and_subfolders(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_safetensors(tmp_path / "one.safetensors", {"a": A})
    write_safetensors(tmp_path / "sub" / "two.safetensors", {"b": B})
    write_index(tmp_path, {"a": "one.safetensors", "b": "sub/two.safetensors"})

    files = open_folder(tmp_path)

    assert sorted(files.tensors) == ["a", "b"]
    assert np.frombuffer(files.tensors["b"].data.read(), "<f4").tolist() == [3]
    files.close()


def test_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors", {"a": A})
    index = write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(LoadError, match=r"tensor 'b' is not in shard 'one\.safetensors'"):
        open_index(index)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors", {"a": A})
    write_safetensors(tmp_path / "two.safetensors", {"a": A, "b": B})
    index = write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(LoadError, match="tensor 'a' is already in another shard"):
        open_index(index)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}, "x"])
def test_bad_weight_map(tmp_path: Path, weight_map: Any) -> None:
    with pytest.raises(LoadError, match="weight_map"):
        open_index(write_index(tmp_path, weight_map))


def test_repeated_key_in_the_index(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text('{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}')
    with pytest.raises(LoadError, match="'a' appears twice"):
        open_index(path)


def test_single_file_wins_over_an_index(tmp_path: Path, data_dir: Path) -> None:
    write_index(tmp_path, {"a": "absent.safetensors"})
    shutil.copy(data_dir / "golden" / "llama" / "model.safetensors", tmp_path)
    assert "model.norm.weight" in open_folder(tmp_path).tensors


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no model\.safetensors and no model"):
        open_folder(tmp_path)
