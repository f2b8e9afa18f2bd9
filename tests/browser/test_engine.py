"""engine/engine.js as a page author uses it. Seeded fault seen to fail: a step that returns None
where it waits for a promise."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.conftest import ALL_TESTS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# One answer after the other, both at once, and a request that is refused.
ANSWERS = """async backend => {
  const { createEngine } = await import("/engine/engine.js");
  const model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const engine = await createEngine({ model, backend });
  const ask = async content => {
    const request = { messages: [{ role: "user", content }], max_tokens: 6, temperature: 0 };
    return (await engine.chat.completions.create(request)).choices[0].message.content;
  };
  const waitedS = async () => (await engine.info()).waited_s;
  const questions = ["Say hello.", "What is two plus two?"];
  const began = performance.now(), before = await waitedS();
  const single = [];
  for (const question of questions) single.push(await ask(question));
  const seconds = (performance.now() - began) / 1000, waited = await waitedS() - before;
  const together = await Promise.all(questions.map(ask));
  const refused = await ask(5).catch(error => error.message);
  const few = { max_tokens: 4, temperature: 0 };
  const create = request => engine.chat.completions.create({ ...few, ...request });
  const prompt = "The capital of France is";
  const text = await create({ prompt, logprobs: 1, return_token_ids: true });
  const messages = [{ role: "user", content: questions[0] }];
  const chat = await create({ messages, logprobs: true, top_logprobs: 2 });
  return { single, together, refused, seconds, waited, after: await ask(questions[0]), text, chat };
}"""


@pytest.mark.parametrize("backend", ["webgpu", "oracle"])
def test_requests_at_once_wait_for_one_another(
    chromium: Browser, served: str, backend: str
) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served}/models.json")
    got: dict[str, Any] = page.evaluate(ANSWERS, backend)
    context.close()
    assert all(got["single"]) and got["single"][0] != got["single"][1]
    assert got["together"] == got["single"] and got["after"] == got["single"][0]
    assert "expected text" in got["refused"]
    text, chat = got["text"], got["chat"]
    assert (text["object"], chat["object"]) == ("text_completion", "chat.completion")
    (choice,) = text["choices"]
    assert "Paris" in choice["text"] and len(choice["token_ids"]) == 4
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    content = chat["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == chat["choices"][0]["message"]["content"]
    if backend == "webgpu":
        assert 0.2 * got["seconds"] < got["waited"] < got["seconds"], "the wait for the GPU"


# With the columns of an embedding turned round in each quad.
SPOILED = ("= FACTOR * v[i]", "= FACTOR * v[3u - i]")
CHECKED = """async () => {
  const { Engine } = await import("/engine/engine.js");
  const engine = new Engine();
  const told = [];
  engine.onnotice = text => told.push(text);
  const stages = new Set();
  const onProgress = ({ stage }) => stages.add(stage);
  const model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  await engine.load(model, { backend: "webgpu", check: true, onProgress });
  const messages = [{ role: "user", content: "What is the capital of France?" }];
  const answer = await engine.chat.completions.create({ messages, max_tokens: 8, temperature: 0 });
  const root = await navigator.storage.getDirectory();
  const kept = await (await (await root.getFileHandle("kernels.json")).getFile()).text();
  engine.close();
  return { told, stages: [...stages], kept, text: answer.choices[0].message.content };
}"""


def test_a_wrong_kernel_gives_way(chromium: Browser, served: str) -> None:
    context = chromium.new_context()
    page = context.new_page()

    def spoil(route: Route) -> None:
        text = route.fetch().text()
        code = "this.preamble + kernel.wgsl"
        assert code in text
        spoiled = f"{code}.replace({SPOILED[0]!r}, {SPOILED[1]!r})"
        route.fulfill(body=text.replace(code, spoiled), content_type="text/javascript")

    context.route("**/engine/gpu.js", spoil)
    page.goto(f"{served}/models.json")
    for again in (False, True)[: 1 + ALL_TESTS]:  # the second time the verdict is known
        got = page.evaluate(CHECKED)
        assert "Paris" in got["text"], again
        assert "check" in got["stages"]
        (told,) = got["told"]
        assert told.startswith("webgpu: the kernel of embed is wrong on this adapter")
        assert "NumPy" in told
        assert '"wrong"' in got["kept"] and got["kept"].count('"right"') > 8
    context.close()
