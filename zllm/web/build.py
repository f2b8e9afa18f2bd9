"""The static site: the page, Pyodide, NumPy, and zLLM as bytecode. It needs no network to run."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zllm.errors import ZllmError
from zllm.web import parts
from zllm.web.bytecode import compile_archives

PACKAGE = Path(__file__).parents[1]
MARK = "zllm-site.json"  # tells a site from a folder that must not be overwritten
# Of zLLM, what a page cannot use.
NATIVE_ONLY = ("bin/", "web/site/", "web/build.py", "web/serve.py", "web/parts.py",
               "web/bytecode.py", "backend/webgpu/wgpu_device.py", "backend/webgpu/wgpu_program.py",
               "backend/webgpu/export.py")  # fmt: skip
# Of NumPy, what only its own tests and C compilers read.
NUMPY_UNUSED = ("/tests/", "/f2py/", "/_pyinstaller/", "/distutils/")
NUMPY_SUFFIXES = (".h", ".a", ".pyi", ".pxd", ".pyx", ".c", ".ini", ".pc")
# Of the standard library, what speaks to mail, terminals and devices that a page does not have.
STDLIB_UNUSED = (
    "aifc", "cgi", "chunk", "crypt", "curses/", "dbm/", "ensurepip/", "ftplib", "idlelib/",
    "imaplib", "imghdr", "lib2to3/", "mailbox", "mailcap", "msilib/", "multiprocessing/",
    "nntplib", "optparse", "pipes", "poplib", "pydoc_data/", "rlcompleter", "sched", "smtplib",
    "sndhdr", "socketserver", "sqlite3/", "sunau", "telnetlib", "test/", "tkinter/", "turtle",
    "turtledemo/", "uu.", "venv/", "wave", "webbrowser", "wsgiref/", "xdrlib", "xml/",
    "xmlrpc/", "zipapp",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Built:
    """A finished site."""

    folder: Path
    size_bytes: int
    without_bytecode: str | None  # why sources were shipped


class SiteError(ZllmError):
    """A site cannot be built or served."""


def page_source() -> Path:
    """The page's files: inside an installed package, or at the root of a checkout."""
    for folder in (PACKAGE / "web" / "site", PACKAGE.parent / "web"):
        if (folder / "index.html").is_file():
            return folder
    raise SiteError("this installation of zLLM has no page: reinstall it")


def build(out: Path) -> Built:
    """Write the site to `out`, new or an earlier site; it appears whole or not at all."""
    _check(out)
    files = parts.pyodide_files()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".zllm-site-", dir=out.parent) as name:
        made = Path(name) / "site"
        _copy_page(made)
        why = _write_python(made / "python", files, Path(name))
        (made / MARK).write_text(json.dumps({"zllm": _version(), "pyodide": parts.PYODIDE}))
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return Built(out, sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), why)


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise SiteError(f"{out} is a file: name a folder for the site")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(
            f"{out} holds files that are no site of zLLM's, and building would delete them: "
            "name a new or an empty folder"
        )


def _copy_page(made: Path) -> None:
    unused = shutil.ignore_patterns("*.md", "__pycache__", "pictures")
    shutil.copytree(page_source(), made, ignore=unused)
    if not (made / "README.md").exists():
        shutil.copy(page_source() / "README.md", made / "README.md")


def _write_python(folder: Path, files: Mapping[str, Path], work: Path) -> str | None:
    """Pyodide with its lock file, and the packages. Returns why there is no bytecode, if so."""
    folder.mkdir()
    for name in ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm"):
        shutil.copy(files[name], folder / name)
    wheels = {"numpy": (parts.NUMPY, _numpy(files[parts.NUMPY]))}
    for name in parts.PURE:
        at, members = parts.pure_package(name)
        wheels[name] = _pure_wheel(name, at, members)
    wheels["zllm"] = _pure_wheel("zllm", _version(), dict(_own_files()))
    sources = {work / "python_stdlib.zip": folder / "python_stdlib.zip"}
    _zip(work / "python_stdlib.zip", _stdlib(files["python_stdlib.zip"]))
    for file_name, members in wheels.values():
        _zip(work / file_name, members)
        sources[work / file_name] = folder / file_name
    why = compile_archives(sources, files["pyodide.mjs"].parent)
    if why is not None:
        for source, target in sources.items():
            shutil.copy(source, target)
    lock = _lock({name: folder / file_name for name, (file_name, _) in wheels.items()})
    (folder / "pyodide-lock.json").write_text(json.dumps(lock, indent=1))
    return why


def _stdlib(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as read:
        return {
            name: read.read(name) for name in read.namelist() if not name.startswith(STDLIB_UNUSED)
        }


def _numpy(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith((*NUMPY_SUFFIXES, "/"))
            and not any(part in f"/{name}" for part in NUMPY_UNUSED)
        }


def _pure_wheel(
    name: str, version: str, files: Mapping[str, bytes]
) -> tuple[str, dict[str, bytes]]:
    """(file name, members) of a wheel [binary distribution format]."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    added = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tags.encode()}
    return f"{name}-{version}-py3-none-any.whl", {**files, **added}


def _own_files() -> Iterator[tuple[str, bytes]]:
    for path in sorted(PACKAGE.rglob("*")):
        name = path.relative_to(PACKAGE).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and not name.startswith(NATIVE_ONLY):
            yield f"zllm/{name}", path.read_bytes()


def _zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


def _lock(wheels: Mapping[str, Path]) -> dict[str, Any]:
    """Of Pyodide's lock file format: loadPackage checks every hash."""
    return {
        "info": {
            "abi_version": "2024_0",
            "arch": "wasm32",
            "platform": "emscripten_3_1_58",
            "python": "3.12.7",
            "version": parts.PYODIDE,
        },
        "packages": {
            name: {
                "name": name,
                "version": path.name.split("-")[1],
                "file_name": path.name,
                "install_dir": "site",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "package_type": "package",
                "imports": [name],
                "depends": DEPENDS.get(name, []),
                "unvendored_tests": False,
            }
            for name, path in wheels.items()
        },
    }


DEPENDS = {"jinja2": ["markupsafe"], "zllm": ["numpy", "jinja2"]}


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("zllm")
    except metadata.PackageNotFoundError:
        return "0"
