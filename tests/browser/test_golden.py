"""SmolLM2's golden answers by engine/engine.js, with the cache as each backend keeps it by default.

Seeded fault seen to fail: keys and values kept with six bits fewer.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.conftest import ALL_TESTS
from tests.helpers.tiny_model import GOLDEN

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ITEMS = json.loads((GOLDEN / "smollm2_greedy.json").read_text())["items"]
# The closest of the 222 choices, 0.0015 apart, is the 20th of the second answer.
TOKENS = 48 if ALL_TESTS else 20

# The first alone, the others beside one another.
ANSWERS = """async ([backend, requests]) => {
  const { createEngine } = await import("/engine/engine.js");
  const model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const engine = await createEngine({ model, backend });
  const ask = async request => {
    const ids = [];
    for await (const { choices } of await engine.chat.completions.create(request))
      for (const { token_ids } of choices) ids.push(...token_ids ?? []);
    return ids;
  };
  const [first, ...others] = requests;
  const answers = [await ask(first), ...await Promise.all(others.map(ask))];
  const ran = (await engine.info()).backend;
  engine.close();
  return { answers, ran };
}"""


@pytest.mark.parametrize("backend", ["webgpu", "oracle"])
def test_ids_are_those_of_the_golden_answers(chromium: Browser, served: str, backend: str) -> None:
    asked = {"temperature": 0, "max_tokens": TOKENS, "return_token_ids": True, "stream": True}
    requests = [{"messages": item["messages"], **asked} for item in ITEMS]
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served}/models.json")
    got: dict[str, Any] = page.evaluate(ANSWERS, [backend, requests])
    context.close()
    assert got["ran"] == backend
    assert got["answers"] == [item["f32"]["ids"][:TOKENS] for item in ITEMS]
