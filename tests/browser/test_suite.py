"""The cross-backend suite, run by pytest inside workers of a page: every inner test is one here."""

from __future__ import annotations

import importlib.metadata
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.inner import MODELS, OPS
from tests.helpers.serving import serving
from zllm.web.build import Built

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

TESTS = Path(__file__).parents[1]
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
HELPERS = ("browser/worker", "cross_backend", "helpers", "data")
SILENCE_S = 240  # without a report until a worker counts as hung

PYTEST = "from tests.browser.worker.collector import run\nrun(args)"
CHAT = "from tests.browser.worker.without_jspi import chat\nawait chat()"
CRASH = "import zllm_page\nzllm_page.report('{}')\nraise SystemExit('ended too early')"

# Resolves to {reports, value, error} of each job, whatever happens to its worker.
RUN = """([zips, jobs, silence]) => Promise.all(jobs.map(([code, args]) => new Promise(resolve => {
  const worker = new Worker("/suite/suite.js", { type: "module" });
  const reports = [];
  let watch;
  const end = result => {
    clearTimeout(watch);
    worker.terminate();
    resolve({ reports, ...result });
  };
  const wait = () => {
    clearTimeout(watch);
    watch = setTimeout(() => end({ error: "no report for " + silence + " s" }), 1000 * silence);
  };
  worker.onerror = event => end({ error: event.message || "the worker could not be loaded" });
  worker.onmessage = ({ data }) => {
    if (!data.report) return end(data);
    reports.push(JSON.parse(data.report));
    wait();
  };
  wait();
  worker.postMessage({ zips, code, args, env: { HOME: "/home/pyodide" } });
})))"""


@dataclass(slots=True)
class Answers:
    """What came out of a worker: a row for each test, and how it ended."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    value: Any = None
    error: str = ""

    def check(self, test: str) -> None:
        """It ran, and passed; else AssertionError with what the worker said."""
        row = self.rows.get(test)
        assert row, f"no report; the worker ended with {self.value} {self.error}"
        assert row["outcome"] == "passed", f"{row['outcome']} in the page:\n{row.get('text')}"


def answers_of(ended: dict[str, Any]) -> Answers:
    answers = Answers(value=ended.get("value"), error=ended.get("error", ""))
    for row in ended["reports"]:
        # A test may pass and still fail while it is torn down.
        if row and (row["outcome"] != "passed" or row["id"] not in answers.rows):
            answers.rows[row["id"]] = row
    return answers


@dataclass(frozen=True, slots=True)
class Workers:
    """A page that runs Python in workers of its own, side by side."""

    chromium: Browser
    url: str
    zips: list[tuple[str, str]]

    def run(self, *jobs: tuple[str, Sequence[str]]) -> list[Answers]:
        context = self.chromium.new_context()
        page = context.new_page()
        page.goto(f"{self.url}/models.json")
        ended = page.evaluate(RUN, [self.zips, [[code, [*args]] for code, args in jobs], SILENCE_S])
        context.close()
        return [*map(answers_of, ended)]


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
        archive.write(TESTS / "browser/worker/root_conftest.py", "tests/conftest.py")
    script = TESTS / "browser/worker/suite.js"
    (folder / script.name).write_bytes(script.read_bytes())
    return [("/suite/pytest.zip", "/lib/python3.12/site-packages"), ("/suite/tests.zip", "/suite")]


@pytest.fixture(scope="module")
def workers(chromium: Browser, built: Built) -> Iterator[Workers]:
    with serving(built.folder, {}) as url:
        yield Workers(chromium, url, write_zips(built.folder / "suite"))


@pytest.fixture(scope="module")
def suite(workers: Workers) -> dict[str, Answers]:
    """Ops and models side by side; of each inner test the answers of its worker."""
    ops, models = workers.run(
        (PYTEST, [f"/suite/{test}" for test in OPS]),
        (PYTEST, [f"/suite/{test}" for test in MODELS]),
    )
    return {**dict.fromkeys(OPS, ops), **dict.fromkeys(MODELS, models)}


@pytest.mark.parametrize("inner", [*OPS, *MODELS])
def test_in_the_page(suite: dict[str, Answers], inner: str, request: pytest.FixtureRequest) -> None:
    suite[inner].check(inner)
    request.node.user_properties.append(("seconds", suite[inner].rows[inner]["seconds"]))


def test_pytest_of_each_worker_was_content(suite: dict[str, Answers]) -> None:
    for answers in (suite[OPS[0]], suite[MODELS[0]]):
        assert (answers.value, answers.error) == (0, "")
    ran = suite[OPS[0]].rows.keys() | suite[MODELS[0]].rows.keys()
    assert ran == {*OPS, *MODELS}


def test_what_is_wrong_in_a_worker_comes_out(workers: Workers) -> None:
    samples = "tests/browser/worker/samples.py"
    failed, none, crashed = workers.run(
        (PYTEST, [f"/suite/{samples}"]), (PYTEST, ["/suite/tests/data"]), (CRASH, [])
    )
    failed.check(f"{samples}::test_right")
    for name, words in {
        "test_wrong": "one and one are not three",
        "test_left_out": "nobody would see it",
        "test_ends_badly": "the end is wrong",
        "test_of_no_such_fixture": "'absent' not found",
        "test_that_is_not_there": "no report",
    }.items():
        with pytest.raises(AssertionError, match=words):
            failed.check(f"{samples}::{name}")
    assert failed.value == 1 and none.value == 5 and not none.rows
    assert "ended too early" in crashed.error and not crashed.rows


def test_a_chat_never_suspends_python(workers: Workers) -> None:
    (answers,) = workers.run((CHAT, []))
    assert not answers.error, answers.error
    chats = json.loads(answers.value)
    for backend in ("webgpu", "oracle"):
        chat = chats[backend]
        assert chat["backend"] == backend
        assert chat["progress"] and chat["progress"][-1][0] == chat["progress"][-1][1]
        assert ["".join(answer) for answer in chat["answers"]] == [" beta gamma delta"] * 2
    checks = chats["webgpu"]["checks"]
    assert checks and all(check["right"] for check in checks), checks
