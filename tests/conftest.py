"""Fixtures for every test, and the rule that under CI nothing is left out."""

from __future__ import annotations

import functools
import os
import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zllm import hub
from zllm.bin import adapters, doctor

if TYPE_CHECKING:
    from playwright.sync_api import Playwright

CI = os.environ.get("CI") == "true"
# Compiling shaders on a CPU takes most of a run, so each kernel test meets two of its five guises,
# drawn by its name, and each golden model half of its WebGPU tests. `ZLLM_TESTS=all`: all.
ALL_TESTS = os.environ.get("ZLLM_TESTS") == "all"
GUISES = re.compile(r"(software-plain|software-quads|software|gpu-plain|gpu)(?=[-\]])")
PAIRS = ({"software", "gpu-plain"}, {"software-plain", "gpu"}, {"software-quads", "gpu"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ALL_TESTS:
        return
    left_out = [item for item in items if not _wanted(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _wanted(item.nodeid)]


def _wanted(test: str) -> bool:
    if test.startswith("tests/cross_backend/test_golden.py::") and "[webgpu-" in test:
        return "greedy" in test or "append" in test or zlib.crc32(test.encode()) % 4 == 0
    guise = GUISES.search(test) if test.startswith("tests/kernel/") else None
    if guise is None:
        return True
    rest = test.replace(guise[0], "", 1)
    return guise[0] in PAIRS[zlib.crc32(rest.encode()) % len(PAIRS)]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """tests/data: the golden inputs and outputs that the tests compare with."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2 GGUF, pulled into the cache on a machine that does not have it yet."""
    try:
        return hub.pull("smollm2")
    except hub.HubError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The Gemma 3 270M GGUF, likewise."""
    try:
        return hub.pull("gemma3-270m")
    except hub.HubError as error:
        pytest.skip(f"Gemma 3 270M cannot be fetched: {error}")


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The Chromium binary; tests that use it are marked `browser`."""
    path = doctor.find_chromium()
    assert path is not None, "mark tests that use chromium_path with pytest.mark.browser"
    return path


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """One at a time in a process, and no asyncio.run() while it lives."""
    from playwright.sync_api import sync_playwright  # no need of it on a machine of GPUs

    with sync_playwright() as running:
        yield running


@functools.cache
def has_vulkan() -> bool:
    found, _ = adapters.probe()
    return any(adapter["backend"] in ("Vulkan", "Metal", "D3D12") for adapter in found)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vulkan") and not has_vulkan():
        pytest.skip("no Vulkan adapter (Debian: apt-get install mesa-vulkan-drivers)")
    if item.get_closest_marker("browser") and doctor.find_chromium() is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI, where nothing may be: {report.longrepr}"
