"""Archives of .py files turned into archives of bytecode, by an interpreter of Pyodide's version.

Sources cost Pyodide 1.7 s of compiling at each start. Bytecode belongs to one Python version, so
without such an interpreter (CPython of that version, or Node.js to run Pyodide) sources stay.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHON = (3, 12)  # of Pyodide 0.27

# Runs in the other interpreter. Unchecked hashes [PEP 552]: nothing looks for a source.
COMPILE = """
import importlib.util, json, marshal, zipfile

DATE = 1980, 1, 1, 0, 0, 0

def code(name, source):
    body = compile(source, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return head + importlib.util.source_hash(source) + marshal.dumps(body)

def compile_archives(pairs):
    for path, target in pairs:
        with zipfile.ZipFile(path) as read, zipfile.ZipFile(target, "w") as out:
            for name in read.namelist():
                data = read.read(name)
                if name.endswith(".py"):
                    name, data = name + "c", code(name, data)
                out.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
"""
IN_NODE = """
const [pyodideUrl, folder, job] = process.argv.slice(2);
const { loadPyodide } = await import(pyodideUrl);
const pyodide = await loadPyodide({ lockFileURL: `${folder}/lock.json` });
pyodide.mountNodeFS("/job", folder);
pyodide.runPython(job);
"""

NO_PACKAGES = {
    "info": {
        "abi_version": "2024_0",
        "arch": "wasm32",
        "platform": "emscripten_3_1_58",
        "python": "3.12.7",
        "version": "0.27.7",
    },
    "packages": {},
}


def compile_archives(pairs: dict[Path, Path], pyodide: Path) -> str | None:
    """Write each key's archive as bytecode to its value; None, or why it could not be done.

    pyodide: the folder of Pyodide's files, for Node.js to run.
    """
    python = _python()
    if python is not None:
        job = f"{COMPILE}\ncompile_archives({json.dumps(_names(pairs))})"
        return _run([python, "-c", job])
    node = shutil.which("node")
    if node is None:
        version = ".".join(map(str, PYTHON))
        return f"neither Python {version} nor Node.js was found"
    return _compile_in_node(node, pairs, pyodide)


def _python() -> str | None:
    """CPython of the version; a name on the path may be a shim for a version that is not there."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    found = shutil.which("python{}.{}".format(*PYTHON))
    return found if found and _run([found, "-c", ""]) is None else None


def _names(pairs: dict[Path, Path]) -> list[tuple[str, str]]:
    return [(str(source), str(target)) for source, target in pairs.items()]


def _compile_in_node(node: str, pairs: dict[Path, Path], pyodide: Path) -> str | None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = {}
        for at, (source, target) in enumerate(pairs.items()):
            shutil.copy(source, folder / f"{at}.in")
            work[f"/job/{at}.in"] = f"/job/{at}.out", target
        script = folder / "compile.mjs"
        script.write_text(IN_NODE)
        (folder / "lock.json").write_text(json.dumps(NO_PACKAGES))
        job = f"{COMPILE}\ncompile_archives({json.dumps([(i, o) for i, (o, _) in work.items()])})"
        url = (pyodide / "pyodide.mjs").resolve().as_uri()
        failed = _run([node, str(script), url, name, job])
        if failed is None:
            for made, target in work.values():
                shutil.move(folder / Path(made).name, target)
        return failed


def _run(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
    return f"{Path(command[0]).name} failed: {lines[-1] if lines else done.returncode}"
