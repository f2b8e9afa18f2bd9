"""The built site: whole, small, checked, and byte-compiled."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import zipfile
from pathlib import Path

import pytest

from zllm.web import parts
from zllm.web.build import MARK, Built, SiteError, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("web") / "site")


def test_the_site_is_small_enough(built: Built) -> None:
    assert built.size_bytes <= 20e6
    assert built.size_bytes == sum(p.stat().st_size for p in built.folder.rglob("*") if p.is_file())


def test_python_files_are_bytecode(built: Built) -> None:
    assert built.without_bytecode is None
    for path in built.folder.glob("python/*.[wz]*"):
        if path.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            assert not [name for name in names if name.endswith(".py")], path.name
            assert [name for name in names if name.endswith(".pyc")], path.name


def test_bytecode_is_of_the_interpreter_in_the_page(built: Built) -> None:
    with zipfile.ZipFile(built.folder / "python" / "python_stdlib.zip") as archive:
        head = archive.read("abc.pyc")[:8]
    assert head[:4] == (3531).to_bytes(2, "little") + b"\r\n"  # Python 3.12
    assert head[4:] == (1).to_bytes(4, "little")  # unchecked hash: no source is looked for
    assert importlib.util.MAGIC_NUMBER[2:] == b"\r\n"


def test_every_hash_of_the_lock_file_is_right(built: Built) -> None:
    lock = json.loads((built.folder / "python" / "pyodide-lock.json").read_text())
    assert set(lock["packages"]) == {"numpy", "jinja2", "markupsafe", "zllm"}
    for package in lock["packages"].values():
        data = (built.folder / "python" / package["file_name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == package["sha256"]
        assert set(package["depends"]) <= set(lock["packages"])


def test_pyodide_is_as_it_was_published(built: Built) -> None:
    for name in ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm"):
        data = (built.folder / "python" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == parts.FILES[name]


def test_nothing_of_the_page_comes_from_elsewhere(built: Built) -> None:
    """Neither scripts nor styles: addresses are only those that a visitor types."""
    for path in [*built.folder.glob("*.html"), *built.folder.glob("page/*.js")]:
        found = re.findall(
            r"""(?:src|href|import|from)\s*[=(]?\s*["'](https?:[^"']*)""", path.read_text()
        )
        assert not found, path.name


def test_what_only_a_native_process_uses_is_left_out(built: Built) -> None:
    (wheel,) = built.folder.glob("python/zllm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "zllm/embedded.pyc" in names and "zllm/kernel/wgsl/attend.wgsl" in names
    assert not [name for name in names if name.startswith(("zllm/bin/", "zllm/web/site/"))]


def test_a_site_is_replaced_whole(built: Built) -> None:
    stray = built.folder / "stray.txt"
    stray.write_text("of an earlier site")
    before = files(built.folder) - {stray}
    build(built.folder)
    assert files(built.folder) == before
    assert not list(built.folder.parent.glob(".zllm-site-*"))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_files_that_are_no_site_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SiteError, match="would delete them"):
        build(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SiteError, match="is a file"):
        build(file)
    assert not list(tmp_path.glob(f"*/{MARK}"))


def test_a_damaged_part_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the cache with a wrong hash is not used."""
    good = parts.pyodide_files()
    folder = tmp_path / f"pyodide-{parts.PYODIDE}"
    folder.mkdir(parents=True)
    for name, path in good.items():
        (folder / name).write_bytes(path.read_bytes())
    (folder / "pyodide.mjs").write_bytes(b"// not Pyodide\n")
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    monkeypatch.setenv(parts.CDN_VARIABLE, good["pyodide.mjs"].parent.as_uri())
    assert parts.pyodide_files()["pyodide.mjs"].read_bytes() == good["pyodide.mjs"].read_bytes()
