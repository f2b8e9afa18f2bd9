"""The first question of a page waits for no shader that could have been made before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.contract import PlanKey
from zllm.embedded import Engine
from zllm.runtime.plans import PlanPool
from zllm.web import worker

CHAT = Path(__file__).parents[1] / "data" / "cases" / "chain-a"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[PlanKey]:
    """Keys of the plans that were made, in order."""
    keys: list[PlanKey] = []
    record = PlanPool.record

    def recorded(self: PlanPool, key: PlanKey) -> Any:
        keys.append(key)
        return record(self, key)

    monkeypatch.setattr(PlanPool, "record", recorded)
    return keys


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """The worker's engine, once it is put there."""
    engines: list[Engine] = []
    monkeypatch.setattr(worker, "_engine", None)
    yield engines
    for engine in engines:
        engine.close()


@pytest.mark.vulkan
def test_the_plan_of_a_question_is_made_before_one_is_asked(
    opened: list[Engine], compiled: list[PlanKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.append(Engine(model=CHAT, backend="webgpu"))
    monkeypatch.setattr(worker, "_engine", opened[0])
    worker.prepare()
    made = list(compiled)
    assert any(key.rows > key.seqs for key in made)
    opened[0].generate({**worker.QUESTION, "max_tokens": 4, "temperature": 0})
    assert compiled == made


def test_nothing_is_made_on_the_oracle_or_for_a_model_that_cannot_be_asked(
    opened: list[Engine],
    compiled: list[PlanKey],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    worker.prepare()  # nothing is open
    folder = tmp_path / "silent"
    shutil.copytree(CHAT, folder)
    (folder / "tokenizer.json").unlink()
    for path in (CHAT, folder):
        opened.append(Engine(model=path, backend="oracle"))
        monkeypatch.setattr(worker, "_engine", opened[-1])
        compiled.clear()
        worker.prepare()
        assert not compiled
