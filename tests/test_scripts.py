"""The shell scripts behind the Makefile, with the commands they call replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("bash", "cat", "cksum", "dirname", "env", "grep", "id", "ls", "rm", "uname")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that is the whole PATH: a few real tools, and what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def stub(path: Path, name: str, body: str) -> None:
    file = path / name
    file.unlink(missing_ok=True)
    file.write_text(f"#!/bin/bash\n{body}\n")
    file.chmod(0o755)


def run(script: Path, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(script)]
    variables = {"PATH": str(path), "HOME": os.environ["HOME"], **env}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_missing_package_is_named_with_its_cost(path: Path, ci: str, code: int) -> None:
    stub(path, "id", "echo 1000")
    done = run(ROOT / "scripts/packages.sh", path, ZLLM_CHROMIUM="/none", CI=ci)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert "chromium missing" in line and "the tests marked browser cannot run" in line


def test_missing_package_is_installed_by_root_on_debian(path: Path, tmp_path: Path) -> None:
    stub(path, "id", "echo 0")
    stub(path, "apt-get", f'echo "$@" >>{tmp_path}/calls')
    if not Path("/etc/debian_version").exists():
        pytest.skip("packages are installed on Debian only")
    done = run(ROOT / "scripts/packages.sh", path, ZLLM_CHROMIUM="/none", CI="true")
    assert done.returncode == 0, done.stderr
    update, install = (tmp_path / "calls").read_text().splitlines()
    assert update.startswith("update") and install.startswith("install")
    assert "chromium" in install


def test_present_packages_cost_nothing(path: Path) -> None:
    stub(path, "apt-get", "exit 9")
    stub(path, "chromium", "")
    stub(path, "ls", "echo lvp_icd.json")
    done = run(ROOT / "scripts/packages.sh", path, CI="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What setup.sh reads of a clone."""
    folder = tmp_path / "clone"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "scripts/setup.sh", folder / "scripts")
    return folder


def test_setup_without_a_new_python_says_so(path: Path, clone: Path) -> None:
    stub(path, "python3", "exit 1")  # as 3.10 answers the version question
    done = run(clone / "scripts/setup.sh", path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs Python 3.11 or newer" in line


def test_setup_installs_once_per_change(path: Path, clone: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    fake = clone / ".venv/bin/python"
    fake.parent.mkdir(parents=True)
    stub(fake.parent, "python", f'echo "$@" >>{calls}')
    script = clone / "scripts/setup.sh"

    def installs() -> int:
        done = run(script, path)
        assert done.returncode == 0, done.stderr
        return calls.read_text().count("pip install")

    assert (installs(), installs()) == (1, 1)
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert (installs(), installs()) == (2, 2)
