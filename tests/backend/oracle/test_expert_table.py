"""A checkpoint's table of experts by token is untrusted: an expert that is not there is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine
from zllm.errors import LoadError


def test_an_expert_outside_the_layer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "deepseek_v4", folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    (first, *_) = (entry for name, entry in header.items() if name.endswith("tid2eid"))
    at = 8 + header_bytes + first["data_offsets"][0]
    data[at : at + 8] = (77).to_bytes(8, "little")
    path.write_bytes(data)
    with (
        Engine(model=folder, backend="oracle") as engine,
        pytest.raises(LoadError, match="names experts from 0 to 77; the layer has 6"),
    ):
        engine.logits([[1, 2, 3]])
