"""Inside the page's worker: pytest, and its reports on their way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

TEXT = 4000  # characters of a failure

# Assertions are not rewritten: that would cost seconds, and failures are told in messages.
OPTIONS = [
    "-q",
    *("-p", "no:cacheprovider"),
    *("-p", "no:junitxml"),
    *("-W", "error::zllm.errors.Notice"),
    "--color=no",
    "--assert=plain",
    "--import-mode=importlib",
    "--capture=sys",
    "--rootdir=/suite",
]


class Collector:
    """Posts the outcome of each test, as JSON."""

    def __init__(self, post: Callable[[str], Any]) -> None:
        self._post = post

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._report(report, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._report(report, 0.0)

    def _report(self, report: pytest.TestReport | pytest.CollectReport, seconds: float) -> None:
        row = {"id": report.nodeid, "outcome": report.outcome, "seconds": seconds}
        if report.outcome != "passed":
            row["text"] = str(report.longrepr)[-TEXT:]
        self._post(json.dumps(row))


def run(args: list[str]) -> int:
    """pytest's exit code."""
    import zllm_page

    return int(pytest.main([*OPTIONS, *args], plugins=[Collector(zllm_page.report)]))
