"""What importing zllm costs, and which third-party packages each part may use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[2] / "zllm"
# NumPy is all that the core may need; what else a part imports is listed here and nowhere more.
THIRD_PARTY = {
    "zllm.attention": {"numpy"},
    "zllm.moe": {"numpy"},
    "zllm.kv_cache": {"numpy"},
    "zllm.quant": {"numpy"},
    "zllm.norm": {"numpy"},
    "zllm.rope": {"numpy"},
    "zllm.activation": {"numpy"},
    "zllm.hyper_connection": {"numpy"},
    "zllm.sampling": {"numpy"},
    "zllm.model_spec": set(),
    "zllm.errors": set(),
    "zllm.weight": {"numpy"},
    "zllm.text": {"jinja2"},
    "zllm.kernel": set(),
    "zllm.backend": {"numpy", "wgpu"},
    "zllm.runtime": {"numpy"},
    "zllm.embedded": {"numpy"},
    "zllm.hub": set(),
    "zllm.fetch": {"huggingface_hub", "tqdm"},
    "zllm.bin": {"numpy", "tqdm", "wgpu", "yaml"},
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
start = time.perf_counter()
import zllm
print(time.perf_counter() - start)
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


def test_every_part_is_listed() -> None:
    parts = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    parts |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {f"zllm.{part}" for part in parts} <= THIRD_PARTY.keys()


@pytest.mark.parametrize("part", THIRD_PARTY)
def test_part_imports_only_its_packages(graph: grimp.ImportGraph, part: str) -> None:
    if part in graph.modules:
        assert third_party(graph, part) <= THIRD_PARTY[part]


def test_import_loads_no_device_and_no_server() -> None:
    loaded = json.loads(fresh_python(LOADED))
    assert [name for name in loaded if not name.startswith("zllm")] == []


def test_import_adds_less_than_a_fifth_of_a_second_to_numpy() -> None:
    assert min(float(fresh_python(ELAPSED)) for _ in range(5)) < 0.2


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=str)
def test_package_file_is_empty(path: Path) -> None:
    assert path.read_bytes() == b""
