"""zllm.hub: what a model argument means, and what a cached file must be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from zllm import hub
from zllm.fetch import wheel

DATA = b"GGUF" + bytes(1000)


@pytest.fixture
def fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A known model `tiny` whose download is counted, and an empty cache."""
    done: list[Path] = []

    def fetch(model: wheel.PackagedModel, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
        done.append(path)

    tiny = wheel.PackagedModel("t", "t.gguf", len(DATA), hashlib.sha256(DATA).hexdigest(), ())
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(hub.MODELS, "tiny", tiny)
    monkeypatch.setattr(wheel, "fetch", fetch)
    return done


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLLM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert hub.cache_dir() == Path("/a")
    monkeypatch.delenv("ZLLM_CACHE")
    assert hub.cache_dir() == Path("/b/zllm")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert hub.cache_dir() == Path("/c/.cache/zllm")


def test_existing_path_is_taken_as_it_is(tmp_path: Path, fetches: list[Path]) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(DATA)
    assert hub.resolve(file) == hub.resolve(str(file)) == file
    assert hub.resolve(tmp_path) == tmp_path
    assert fetches == []


def test_known_name_is_fetched_once(fetches: list[Path]) -> None:
    path = hub.resolve("tiny")
    assert path.read_bytes() == DATA
    assert hub.resolve("tiny") == hub.pull("tiny") == hub.pull("tiny", verify=True) == path
    assert fetches == [path]


@pytest.mark.usefixtures("fetches")
@pytest.mark.parametrize("ask", [hub.resolve, hub.pull])
def test_unknown_name_lists_the_known_ones(ask: type[hub.resolve]) -> None:
    with pytest.raises(hub.HubError, match=r"'nope'.*\(gemma3-270m, smollm2, tiny\) or hf:"):
        ask("nope")


@pytest.mark.parametrize("ask", [hub.resolve, hub.pull])
def test_truncated_file_is_refused_and_removed(ask: type[hub.resolve], fetches: list[Path]) -> None:
    path = hub.pull("tiny")
    path.write_bytes(DATA[:-1])
    assert not hub.is_cached("tiny")
    with pytest.raises(hub.HubError, match="has 1003 bytes instead of 1004; removed it"):
        ask("tiny")
    assert not path.exists()
    assert ask("tiny") == path
    assert len(fetches) == 2


def test_changed_file_is_found_by_verify(fetches: list[Path]) -> None:
    path = hub.pull("tiny")
    path.write_bytes(DATA[:-1] + b"!")
    assert hub.pull("tiny") == path
    with pytest.raises(hub.HubError, match="does not have the sha256"):
        hub.pull("tiny", verify=True)
    assert not path.exists()


def test_gemma3_is_joined_from_its_parts(gemma3_path: Path) -> None:
    assert hub.pull("gemma3-270m", verify=True) == gemma3_path


def test_smollm2_is_what_was_published(smollm2_path: Path) -> None:
    assert hub.pull("smollm2", verify=True) == smollm2_path
    assert smollm2_path.read_bytes()[:4] == b"GGUF"
