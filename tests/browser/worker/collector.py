"""Inside the page's worker: pytest, and its reports on their way out."""

from __future__ import annotations

import json
from typing import Any

import pytest


class Collector:
    """Posts the outcome of each test."""

    def __init__(self, post: Any) -> None:
        self._post = post

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            row = {"id": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
            if report.outcome != "passed":
                row["text"] = str(report.longrepr)[-4000:]
            self._post(json.dumps(row))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            row = {"id": report.nodeid, "outcome": "failed", "text": str(report.longrepr)[-4000:]}
            self._post(json.dumps(row))


def run(args: list[str]) -> int:
    import zllm_page

    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--color=no",
        "--import-mode=importlib",
        "--capture=sys",
    ]
    return int(pytest.main([*options, *args], plugins=[Collector(zllm_page.report)]))
