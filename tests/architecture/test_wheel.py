"""The wheel is pure Python and carries everything that zllm reads at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def test_wheel_is_pure(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def files_of(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_the_package_and_the_page_and_nothing_else(wheel: Path) -> None:
    package = {f"zllm/{name}" for name in files_of(ROOT / "zllm")}
    page = {f"zllm/web/site/{name}" for name in files_of(ROOT / "web")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == package | page


def test_wheel_needs_little(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]
    names = {line.split(">")[0].lower() for line in needed if "extra ==" not in line}
    assert names == {"numpy", "pyyaml", "jinja2", "tqdm"}
