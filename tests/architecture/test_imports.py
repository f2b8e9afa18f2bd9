"""What importing zllm costs, and which third-party packages each part may use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[2] / "zllm"
# NumPy is all that the core may need; a part that uses other packages is listed here.
CORE = {"numpy"}
THIRD_PARTY = {
    "zllm.model_spec": set(),
    "zllm.errors": set(),
    "zllm.text": {"jinja2"},
    # js, pyodide and zllm_page (web/engine/worker.js) exist in a page alone.
    "zllm.backend": {"js", "numpy", "pyodide", "wgpu", "zllm_page"},
    "zllm.hub": set(),
    "zllm.fetch": {"huggingface_hub", "tqdm"},
    "zllm.web": {"starlette", "uvicorn", "zllm_page"},
    "zllm.bin": {"matplotlib", "numpy", "tqdm", "wgpu", "yaml"},
}
# What a browser's Python lacks, and what only a command, a device or a server needs.
NOT_IN_THE_CORE = {
    "cffi",
    "http.server",
    "huggingface_hub",
    "matplotlib",
    "mmap",
    "tqdm",
    "uvicorn",
    "wgpu",
    "yaml",
}
LOADED = """
import json, sys
before = set(sys.modules)
import zllm
print(json.dumps(sorted(set(sys.modules) - before)))
"""
ELAPSED = """
import sys, time
import numpy
start = time.process_time()
import zllm
print(time.process_time() - start)
"""


def fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("zllm", include_external_packages=True, cache_dir=None)


def third_party(graph: grimp.ImportGraph, part: str) -> set[str]:
    modules = {part} | graph.find_descendants(part)
    imported = {
        name for module in modules for name in graph.find_modules_directly_imported_by(module)
    }
    roots = {name.partition(".")[0] for name in imported}
    return roots - {"zllm"} - set(sys.stdlib_module_names)


def test_listed_parts_exist(graph: grimp.ImportGraph) -> None:
    assert THIRD_PARTY.keys() <= graph.find_children("zllm")


def test_every_part_imports_only_its_packages(graph: grimp.ImportGraph) -> None:
    excess = {
        part: third_party(graph, part) - THIRD_PARTY.get(part, CORE)
        for part in graph.find_children("zllm")
    }
    assert {part: names for part, names in excess.items() if names} == {}


def test_import_loads_no_device_and_no_server() -> None:
    loaded = json.loads(fresh_python(LOADED))
    assert [name for name in loaded if not name.startswith("zllm")] == []


def test_engine_loads_no_extra_and_no_server() -> None:
    loaded = set(json.loads(fresh_python(LOADED.replace("import zllm", "import zllm.embedded"))))
    assert "zllm.runtime.compose" in loaded
    assert loaded & NOT_IN_THE_CORE == set()


def test_import_adds_less_than_a_fifth_of_a_second_to_numpy() -> None:
    assert min(float(fresh_python(ELAPSED)) for _ in range(5)) < 0.2


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=str)
def test_package_file_is_empty(path: Path) -> None:
    assert path.read_bytes() == b""
