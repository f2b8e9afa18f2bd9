"""Small checkpoints: the folders in tests/data, and copies of them with something changed."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.files import write_safetensors

CASES = Path(__file__).parents[1] / "data" / "cases"
GOLDEN = Path(__file__).parents[1] / "data" / "golden"

# Prompts of the cases' tiny models.
P1 = [3]
P12 = [5, 9, 2, 7, 11, 30, 4, 18, 3, 26, 41, 8]


def altered_copy(
    source: Path,
    target: Path,
    *,
    tensors: Callable[[dict[str, NDArray[np.float32]]], None] | None = None,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
) -> Path:
    """A float32 folder with tensors changed in place, fields overridden and files left out."""
    target.mkdir()
    for file in source.iterdir():
        if file.name not in drop:
            shutil.copyfile(file, target / file.name)
    if tensors is not None:
        arrays = read_safetensors(source / "model.safetensors")
        tensors(arrays)
        write_safetensors(target / "model.safetensors", arrays)
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        if fields is not None:
            path = target / name
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**before, **fields}))
    return target


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry)
        first, last = (8 + size + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[first:last], "<f4").reshape(entry["shape"]).copy()
    return arrays
