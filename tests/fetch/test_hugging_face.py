"""zllm.fetch.hugging_face, as `zllm pull hf:…` runs it, against a hub on this machine."""

from __future__ import annotations

import builtins
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zllm.fetch import hugging_face
from zllm.fetch.store import HubError

if TYPE_CHECKING:
    from tests.fetch.conftest import LocalHub

GGUF = b"GGUF" + bytes(range(256)) * 400


def pull(name: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: the library reads its environment when it is imported.
    command = [sys.executable, "-m", "zllm.bin.main", "pull", name]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def pulled(name: str) -> Path:
    done = pull(name)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().partition(" at ")[2])


def refusal(name: str) -> str:
    done = pull(name)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_file_is_fetched_once(hub_env: LocalHub) -> None:
    hub_env.files["owner/tiny"] = {"q4/tiny.gguf": GGUF}
    assert pulled("hf:owner/tiny/q4/tiny.gguf").read_bytes() == GGUF
    assert pulled("hf:owner/tiny/q4/tiny.gguf").read_bytes() == GGUF
    assert len(hub_env.ranges) == 1


def test_dropped_transfer_resumes_where_it_stopped(hub_env: LocalHub) -> None:
    large = bytes(range(256)) * 100_000  # the library writes, and so resumes, by 10 MB
    hub_env.files["owner/tiny"] = {"tiny.gguf": large}
    hub_env.drop_once_after_bytes = 15_000_000
    assert pulled("hf:owner/tiny/tiny.gguf").read_bytes() == large
    first, second = hub_env.ranges
    assert first is None
    assert second is not None and 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 15_000_000


def test_folder_holds_what_a_model_is_read_from(hub_env: LocalHub) -> None:
    hub_env.files["owner/tiny"] = {
        "config.json": b"{}",
        "model.safetensors": GGUF,
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"weights again",
        "original/model.safetensors": b"weights once more",
        "README.md": b"text",
    }
    folder = pulled("hf:owner/tiny")
    held = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert held == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == GGUF


def test_folder_without_safetensors_asks_for_a_file(hub_env: LocalHub) -> None:
    hub_env.files["owner/tiny"] = {"config.json": b"{}", "tiny.gguf": GGUF}
    assert "name one file: hf:owner/tiny/FILE.gguf" in refusal("hf:owner/tiny")


def test_missing_file_is_named(hub_env: LocalHub) -> None:
    hub_env.files["owner/tiny"] = {"tiny.gguf": GGUF}
    assert "owner/tiny has no file big.gguf" in refusal("hf:owner/tiny/big.gguf")


@pytest.mark.parametrize("name", ["hf:owner/none/tiny.gguf", "hf:owner/none"])
def test_missing_repository_is_named(hub_env: LocalHub, name: str) -> None:
    assert f"{hub_env.endpoint} has no repository owner/none" in refusal(name)


@pytest.mark.parametrize("name", ["hf:owner/shut/tiny.gguf", "hf:owner/shut"])
def test_gated_repository_tells_what_to_do(hub_env: LocalHub, name: str) -> None:
    hub_env.gated.add("owner/shut")
    assert "owner/shut is gated" in (line := refusal(name))
    assert "HF_TOKEN" in line


@pytest.mark.usefixtures("hub_env")
def test_unreachable_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert f"{endpoint} cannot be reached" in refusal("hf:owner/tiny")


def test_offline_mode_uses_the_cache_only(
    hub_env: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_env.files["owner/tiny"] = {"tiny.gguf": GGUF, "other.gguf": GGUF}
    pulled("hf:owner/tiny/tiny.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = hub_env.requests
    assert pulled("hf:owner/tiny/tiny.gguf").read_bytes() == GGUF
    assert "not cached" in refusal("hf:owner/tiny/other.gguf")
    assert hub_env.requests == asked


def test_resolve_of_a_cached_file_asks_nobody(hub_env: LocalHub) -> None:
    hub_env.files["owner/tiny"] = {"tiny.gguf": GGUF}
    pulled("hf:owner/tiny/tiny.gguf")
    asked = hub_env.requests
    code = "from zllm import hub; print(hub.resolve('hf:owner/tiny/tiny.gguf'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(out.stdout.strip()).read_bytes() == GGUF
    assert hub_env.requests == asked


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:owner/", "hf:o/r//f", "hf:o/r/../../f"])
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(HubError, match="expected hf:owner/repo"):
        hugging_face.split_name(name)


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def hidden(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ModuleNotFoundError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", hidden)
    with pytest.raises(HubError, match=r"pip install 'zllm\[hub\]'"):
        hugging_face.fetch("hf:owner/tiny/tiny.gguf", refresh=False)
