"""The cross-backend suite, run by pytest inside a worker of the page: every test is one here."""

from __future__ import annotations

import importlib.metadata
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from zllm.web.build import Built

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

TESTS = Path(__file__).parents[1]
WORKER = Path(__file__).parent / "worker"
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
HELPERS = ("cross_backend", "helpers", "data")

RUN = """([zips, args, env]) => new Promise((resolve, reject) => {
  const worker = new Worker("/suite/suite.js", { type: "module" });
  const reports = [];
  worker.onerror = event => reject(new Error(event.message || "the worker could not be loaded"));
  worker.onmessage = ({ data }) => {
    if (data.report) return reports.push(JSON.parse(data.report));
    worker.terminate();
    if (data.error) reject(new Error(data.error)); else resolve({ reports, code: data.code });
  };
  worker.postMessage({ zips, args, env });
})"""


def write_zips(folder: Path) -> list[tuple[str, str]]:
    """pytest with what it needs, and the tests; (address, where to unpack) of each."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "pytest.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for file in importlib.metadata.distribution(package).files or ():
                if file.suffix in (".py", ".typed") or ".dist-info/" in file.as_posix():
                    archive.writestr(file.as_posix(), Path(str(file.locate())).read_bytes())
    with zipfile.ZipFile(folder / "tests.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for helper in HELPERS:
            for path in sorted((TESTS / helper).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, f"tests/{path.relative_to(TESTS)}")
        archive.write(WORKER / "collector.py", "tests/browser/worker/collector.py")
        archive.write(WORKER / "root_conftest.py", "tests/conftest.py")
    (folder / "suite.js").write_bytes((WORKER / "suite.js").read_bytes())
    return [("/suite/pytest.zip", "/lib/python3.12/site-packages"), ("/suite/tests.zip", "/suite")]


def run_suite(chromium: Browser, built: Built, served: str, *args: str) -> list[dict[str, Any]]:
    zips = write_zips(built.folder / "suite")
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(1_200_000)
    page.goto(f"{served}/models.json")
    answer = page.evaluate(RUN, [zips, list(args), {"HOME": "/home/pyodide"}])
    context.close()
    reports: list[dict[str, Any]] = answer["reports"]
    return reports


def test_every_op_and_every_model(chromium: Browser, built: Built, served: str) -> None:
    reports = run_suite(
        chromium, built, served, "/suite/tests/cross_backend/test_golden.py", "-k", "full and llama"
    )
    failed = [f"{r['id']}\n{r.get('text', '')}" for r in reports if r["outcome"] != "passed"]
    print(json.dumps(reports, indent=1)[-3000:])
    assert reports and not failed, "\n".join(failed)
