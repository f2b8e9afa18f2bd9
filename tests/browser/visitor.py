"""Somebody who uses the chat page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}


class Visitor:
    """What a visitor does, and what is waited for. Errors of the page fail the test."""

    def __init__(self, page: Page, url: str, shots: Path) -> None:
        self.page = page
        self._url = url
        self._shots = shots
        self.errors: list[str] = []
        page.set_default_timeout(100_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._listen)

    def _listen(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def visit(self, backend: str = "oracle") -> Visitor:
        self.page.goto(f"{self._url}/")
        self.page.check(f"input[value={backend}]")
        self.page.fill("#sampling-temperature", "0")
        self.page.fill("#sampling-max_tokens", "24")
        return self

    def until(self, seen: Callable[[], bool], what: str, seconds: float = 100) -> None:
        deadline = time.monotonic() + seconds
        while not seen():
            told = f"{self.status!r}, {self.problem!r}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s ({told})"
            time.sleep(0.05)

    @property
    def status(self) -> str:
        return self.page.text_content("#status") or ""

    @property
    def problem(self) -> str:
        shown = self.page.is_visible("#problem")
        return (self.page.text_content("#problem span") or "") if shown else ""

    def opened(self) -> Visitor:
        self.until(lambda: " on " in self.status or bool(self.problem), "a model is open")
        assert not self.problem, self.problem
        return self

    def fetch(self) -> Visitor:
        self.page.click(f"button[aria-label='Fetch smollm2'], button[aria-label='Open {SMOLLM2}']")
        return self.opened()

    def ask(self, text: str) -> str:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        return self.answered()

    def answered(self) -> str:
        self.page.wait_for_selector("#stop", state="hidden")
        assert not self.problem, self.problem
        return self.answer

    @property
    def answer(self) -> str:
        body = self.page.query_selector(".message.assistant:last-child .body")
        return ((body and body.text_content()) or "").strip()

    def failed(self) -> str:
        self.until(lambda: bool(self.problem), "something is said")
        return self.problem

    def shot(self, name: str) -> None:
        self.page.screenshot(path=self._shots / f"{name}.png")
