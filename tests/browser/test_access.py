"""The page without a mouse, for who does not see it, and for weak eyes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.visitor import DESKTOP, PHONE, QUESTION, SMOLLM2, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3 (AA), of text

FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const name = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return { id: at.id, tag: at.tagName, name: name.trim(), ring };
}"""


class Typist:
    """Somebody with a keyboard alone."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.keyboard = visitor.page.keyboard

    @property
    def at(self) -> dict[str, Any]:
        place: dict[str, Any] = self.visitor.page.evaluate(FOCUSED)
        return place

    def go(self, name: str, key: str = "Tab") -> None:
        """To the control of this name; each on the way must show that it is the one."""
        met = []
        for _ in range(60):
            self.keyboard.press(key)
            place = self.at
            met.append(place["name"])
            assert place["ring"] or place["tag"] == "BODY", place
            if place["name"].startswith(name):
                return
        raise AssertionError(f"no {name!r} among {met}")

    def press(self, name: str, key: str = "Tab") -> None:
        self.go(name, key)
        self.keyboard.press("Enter")

    def write(self, text: str) -> None:
        assert self.at["id"] == "prompt", self.at
        self.keyboard.type(text)
        self.keyboard.press("Enter")


def test_a_keyboard_is_enough(visitor: Visitor) -> None:
    page, typist = visitor.visit().page, Typist(visitor)
    page.wait_for_selector("button[aria-label='Fetch smollm2']")
    page.focus("#prompt")
    typist.press("Fetch smollm2", "Shift+Tab")
    visitor.opened()
    typist.write(QUESTION)
    first = visitor.answered()
    assert page.text_content("#spoken") == f"The model answered: {first}"
    page.fill("#sampling-max_tokens", "400")
    page.focus("#prompt")
    typist.write("Tell me a long story.")
    visitor.until(lambda: len(visitor.answer) > 3, "the answer begins")
    typist.press("Stop")
    visitor.answered()
    assert typist.at["id"] == "prompt", "the button that had the focus is gone"
    page.fill("#sampling-max_tokens", "8")
    page.focus("#prompt")
    typist.press("Regenerate", "Shift+Tab")
    assert visitor.answered()
    assert typist.at["id"] == "prompt"
    typist.press("Edit", "Shift+Tab")
    assert typist.at["id"] == "prompt" and page.input_value("#prompt").startswith("Tell me")
    page.fill("#prompt", "")
    typist.press("Delete chat", "Shift+Tab")
    assert typist.at["name"] == "New chat" and not page.query_selector(".message")
    typist.press("Undo")
    assert typist.at["id"] == "prompt" and first in (page.text_content("#messages") or "")
    typist.press(f"Delete {SMOLLM2}", "Shift+Tab")
    page.wait_for_selector("button[aria-label='Fetch smollm2']")
    assert typist.at["name"] == "Fetch smollm2"
    # The panels of a narrow page: in, and out again.
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    typist.press("Settings", "Shift+Tab")
    assert typist.at["id"] == "settings"
    typist.go("System prompt")
    typist.keyboard.press("Escape")
    assert typist.at["name"] == "Settings" and page.is_hidden("#system")


# Texts whose contrast with what lies behind them is too low; a disabled control may be pale.
PALE = """least => {
  const light = color => {
    const parts = color.match(/[\\d.]+/g).map(Number);
    const scale = color.startsWith("color(") ? 1 : 255;
    const [r, g, b] = parts.slice(0, 3).map(part => part / scale)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return { value: 0.2126 * r + 0.7152 * g + 0.0722 * b, alpha: parts[3] ?? 1 };
  };
  const behind = at => {
    for (; at; at = at.parentElement) {
      const ground = light(getComputedStyle(at).backgroundColor);
      if (ground.alpha === 1) return ground.value;
    }
    return 1;
  };
  const pale = [];
  let texts = 0;
  const look = (at, style, text) => {
    texts++;
    const [low, high] = [light(style.color).value, behind(at)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < least) pale.push(`${contrast.toFixed(2)} ${text}`);
  };
  for (const at of document.body.querySelectorAll("*")) {
    if (at.disabled || !at.checkVisibility({ visibilityProperty: true })) continue;
    const own = [...at.childNodes].filter(node => node.nodeType === 3 && node.data.trim());
    if (own.length) look(at, getComputedStyle(at), own[0].data.trim());
    if (at.placeholder) look(at, getComputedStyle(at, "::placeholder"), at.placeholder);
  }
  return { pale, texts };
}"""

SAID = """async text => {
  const { chats, complain, notice } = zllm.page;
  chats.current.messages.push({ role: "user", content: "Hello" });
  chats.current.messages.push({ role: "assistant", content: text, note: "2 tokens/s" });
  chats.open(chats.current);
  chats.save();
  complain("something went wrong", { text: "Try it", run() {} });
  notice("something is different");
}"""
MARKDOWN = "A [link](https://example.org), `code`\n\n> a quotation\n\n|a|b|\n|-|-|\n|1|2|\n"
# A placeholder is no name: it goes as soon as something is written.
UNLABELLED = """() => [...document.querySelectorAll("input, textarea")]
  .filter(field => !field.labels?.length && !field.ariaLabel).map(field => field.id)"""
CONTROL = re.compile(
    r"- '?(button|textbox|spinbutton|radio|checkbox|link|meter|img|progressbar)\b(.*)"
)


def test_names_and_contrast(visitor: Visitor) -> None:
    page = visitor.visit().page
    page.wait_for_selector("button[aria-label='Fetch smollm2']")
    page.evaluate(SAID, MARKDOWN)
    page.evaluate("document.getElementById('transfer').hidden = false")
    page.evaluate("document.getElementById('transfer-text').textContent = 'Fetching'")
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        controls = CONTROL.findall(page.locator("body").aria_snapshot())
        assert len(controls) > 8
        nameless = [kind for kind, rest in controls if not re.match(r' ".*\w\w.*"', rest)]
        assert not nameless, nameless
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    assert page.evaluate(UNLABELLED) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen = page.evaluate(PALE, LEAST_CONTRAST)
        assert seen["texts"] > 50
        assert not seen["pale"], (scheme, seen["pale"])
        visitor.shot(f"15-{scheme}")
