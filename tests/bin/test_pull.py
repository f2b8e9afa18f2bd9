"""zllm pull: what it says and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zllm import hub
from zllm.bin import main


def test_cached_model_is_not_fetched_again(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["pull", "smollm2"]) == 0
    assert capsys.readouterr() == (f"smollm2: already at {smollm2_path}\n", "")


def test_json_answer(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pull", "smollm2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"name": "smollm2", "path": str(smollm2_path), "was_cached": True}


def test_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    assert main.main(["pull", "--list"]) == 0
    assert "smollm2" in (out := capsys.readouterr().out)
    assert "not fetched" in out
    assert main.main(["pull", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["cached"]) for row in rows] == [(name, False) for name in hub.MODELS]
    assert [row["size_bytes"] for row in rows] == [m.size_bytes for m in hub.MODELS.values()]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pull"], "nothing to pull"),
        (["pull", "smolm2"], "cannot pull 'smolm2'; expected a known name (gemma3-270m, smollm2)"),
        (["pull", "hf:smollm2"], "bad model name 'hf:smollm2'"),
    ],
)
def test_bad_name_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err
    assert len(err.splitlines()) == 1


def test_truncated_cache_is_one_line_and_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    path = hub.cached_path("smollm2")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert main.main(["pull", "smollm2"]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "has 4 bytes instead of 98362432" in err
    assert not path.exists()
