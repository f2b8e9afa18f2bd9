"""A device never expands weights: what is resident has the size of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from zllm.embedded import Engine


@pytest.mark.vulkan
def test_weights_stay_packed(smollm2_path: Path) -> None:
    with Engine(model=smollm2_path, backend="webgpu", context=128) as engine:
        held = engine.backend.memory()
    file_bytes = smollm2_path.stat().st_size
    assert 0.9 * file_bytes < held["weights"] < 1.1 * file_bytes
    assert held["activations"] < 0.1 * file_bytes
