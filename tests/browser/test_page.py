"""The chat page in Chromium, as a visitor uses it; screenshots of what is seen on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Playwright

from tests.browser.conftest import ARGS
from tests.browser.visitor import PHONE, QUESTION, SMOLLM2, Visitor
from tests.helpers.serving import serving
from zllm.web.build import Built

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_a_visitor_fetches_a_model_and_chats(visitor: Visitor) -> None:
    page = visitor.visit().page
    visitor.shot("1-first-visit")
    visitor.fetch()
    visitor.shot("2-model-open")
    first = visitor.ask(QUESTION)
    assert "Paris" in first
    assert page.input_value("#prompt") == ""
    assert "tokens/s" in (page.text_content(".message.assistant .tools") or "")
    visitor.shot("3-answer")
    page.click("text=Regenerate")
    assert visitor.answered() == first, "greedy answers repeat"
    page.click("text=Edit")
    assert page.input_value("#prompt") == QUESTION and not page.query_selector(".message")
    page.fill("#system", "Answer with one word.")
    page.fill("#prompt", "Name a colour.")
    page.press("#prompt", "Enter")
    assert visitor.answered()
    assert "of 4096 tokens" in (page.text_content("#context-text") or "")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    visitor.shot("4-phone-dark")
    page.click("#menu")
    assert page.get_attribute("#menu", "aria-expanded") == "true"
    visitor.until(lambda: page.is_visible("#new-chat"), "the drawer is open")
    visitor.shot("5-phone-drawer")
    page.reload()
    assert "Name a colour." in (page.text_content("#messages") or ""), "chats outlive a reload"


def test_stop_ends_an_answer_and_the_next_question_works(visitor: Visitor) -> None:
    page = visitor.visit().fetch().page
    page.fill("#sampling-max_tokens", "400")
    page.fill("#prompt", "Tell me a long story.")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#picture .bar")
    visitor.shot("12-answering")
    assert page.is_visible("#stop"), "the picture moves while tokens come"
    page.press("#prompt", "Escape")
    visitor.answered()
    assert "stopped" in (page.text_content(".message.assistant .tools") or "")
    # A long question is being read: the stop does not wait for its end.
    page.fill("#prompt", "word " * 3000)
    page.press("#prompt", "Enter")
    page.wait_for_timeout(300)
    page.click("#stop")
    page.wait_for_selector("text=Try again")  # nothing of an answer had come
    page.click("#new-chat")
    page.fill("#sampling-max_tokens", "8")
    assert visitor.ask(QUESTION)


def test_another_chat_ends_an_answer_and_keeps_what_came(visitor: Visitor) -> None:
    page = visitor.visit().fetch().page

    def begin(question: str) -> None:
        page.fill("#sampling-max_tokens", "400")
        page.fill("#prompt", question)
        page.press("#prompt", "Enter")
        visitor.until(lambda: len(visitor.answer) > 3, "the answer begins")

    begin("Tell me a long story.")
    page.click("#new-chat")
    visitor.answered()
    assert not page.query_selector(".message")
    page.click("#chats .name")
    assert len(visitor.answer) > 3
    assert "stopped" in (page.text_content(".message.assistant .tools") or "")
    # Nor does an answer on its way bring a deleted chat back; its visitor may.
    begin("And another one.")
    page.click("button[aria-label^='Delete chat']")
    visitor.answered()
    assert not page.query_selector("#chats li") and not page.query_selector(".message")
    page.click("text=Undo")
    assert len(page.query_selector_all(".message")) == 4
    page.reload()
    assert len(page.query_selector_all(".message")) == 4


def test_what_a_model_writes_is_harmless(visitor: Visitor, context: BrowserContext) -> None:
    evil = (
        '<img src=x onerror="window.evil=1"> <script>window.evil=1</script> **bold** '
        "[link](javascript:window.evil=1) ![p](https://example.org/secret.png) "
        "[fine](https://example.org) <iframe src='https://example.org'></iframe>"
    )
    said = [("user", "<b>hi</b>"), ("assistant", evil)]
    messages = [{"role": role, "content": content} for role, content in said]
    chat = {"id": "1", "title": "evil", "messages": messages}
    visitor.visit()
    visitor.page.evaluate(
        "chat => localStorage.setItem('zllm.chats', JSON.stringify([chat]))", chat
    )
    visitor.page.evaluate("localStorage.setItem('zllm.chat', '\"1\"')")
    visitor.page.reload()
    body = visitor.page.inner_html(".message.assistant .body")
    assert "<strong>bold</strong>" in body
    for bad in ("<img", "<script", "<iframe", "javascript:", "onerror"):
        assert bad not in body, bad
    assert visitor.page.text_content(".message.user .body") == "<b>hi</b>"
    assert 'rel="noopener noreferrer nofollow"' in body
    assert visitor.page.evaluate("window.evil") is None
    # The sanitizer parses what it then throws away, and the policy forbids even that to run.
    assert all("Content Security Policy" in error for error in visitor.errors)
    visitor.errors.clear()


@pytest.fixture
def kept(
    playwright: Playwright, chromium_path: Path, tmp_path: Path
) -> Iterator[Callable[[], BrowserContext]]:
    """A browser profile on disk, opened again and again."""
    opened: list[BrowserContext] = []

    def start() -> BrowserContext:
        for earlier in opened:
            earlier.close()
        opened[:] = [
            playwright.chromium.launch_persistent_context(
                str(tmp_path / "profile"), executable_path=str(chromium_path), args=ARGS
            )
        ]
        return opened[0]

    yield start
    for context in opened:
        context.close()


@pytest.fixture
def slow(built: Built, smollm2_path: Path) -> Iterator[serving]:
    """A server that can be slow; its address is `url`."""
    server = serving(built.folder, {"smollm2": smollm2_path})
    with server as url:
        server.url = url
        yield server


def test_a_broken_download_goes_on_after_a_reload(
    kept: Callable[[], BrowserContext], slow: serving, shots: Path
) -> None:
    slow.delay_s = 0.4
    visitor = Visitor(kept().new_page(), slow.url, shots)
    visitor.visit().page.click("button[aria-label='Fetch smollm2']")
    visitor.until(lambda: len(slow.ranges) > 12, "a part has come")
    visitor.shot("7-fetching")
    visitor.page.reload()
    before = set(slow.ranges)
    slow.delay_s = 0.0
    visitor.page.click(f"button[aria-label='Go on fetching {SMOLLM2}']")
    visitor.opened()
    again = set(slow.ranges[len(before) :]) & before
    assert len(again) < 6, "only what was under way is asked for again"
    (model,) = visitor.page.evaluate("zllm.engine.models.list()")
    assert model["complete"] and model["have"] == model["size"]
    assert "Paris" in visitor.ask(QUESTION)
    # The browser itself is started again.
    visitor = Visitor(kept().new_page(), slow.url, shots).visit()
    visitor.page.click(f"button[aria-label='Open {SMOLLM2}']")
    assert "Paris" in visitor.opened().ask(QUESTION)


def test_pause_keeps_what_came_and_cancel_does_not(
    context: BrowserContext, slow: serving, shots: Path
) -> None:
    slow.delay_s = 0.4
    visitor = Visitor(context.new_page(), slow.url, shots).visit()
    page = visitor.page
    page.click("button[aria-label='Fetch smollm2']")
    visitor.until(lambda: len(slow.ranges) > 8, "a part has come")
    page.click("#pause")
    page.wait_for_selector(f"button[aria-label='Go on fetching {SMOLLM2}']")
    page.click(f"button[aria-label='Go on fetching {SMOLLM2}']")
    visitor.until(lambda: len(slow.ranges) > 12, "more has come")
    page.click("#cancel")
    page.wait_for_selector("button[aria-label='Fetch smollm2']")
    assert page.evaluate("zllm.engine.models.list()") == []


def test_a_damaged_copy_is_noticed(visitor: Visitor) -> None:
    visitor.visit().fetch()
    visitor.page.evaluate(DAMAGE)
    visitor.page.click(f"button[aria-label='Open {SMOLLM2}']")
    assert "damaged" in visitor.failed()
    visitor.shot("11-damaged")
    visitor.page.click("#problem >> text=/^Fetch it again/")
    visitor.until(lambda: visitor.status == "no model open", "the damaged copy is given up")
    assert "Paris" in visitor.opened().ask(QUESTION)


DAMAGE = """async () => {
  const models = await (await navigator.storage.getDirectory()).getDirectoryHandle("models");
  for await (const folder of models.values())
    for await (const [name, file] of folder.entries())
      if (name.endsWith(".gguf")) {
        const writable = await file.createWritable({ keepExistingData: true });
        const data = new Uint8Array([1, 2, 3]);
        await writable.write({ type: "write", position: 50000000, data });
        await writable.close();
      }
}"""


def test_a_second_tab_is_told_to_wait(context: BrowserContext, slow: serving, shots: Path) -> None:
    slow.delay_s = 0.3
    one, two = (Visitor(context.new_page(), slow.url, shots).visit() for _ in range(2))
    one.page.click("button[aria-label='Fetch smollm2']")
    one.until(lambda: len(slow.ranges) > 6, "the first fetches")
    two.page.click("#models button.name")
    assert "nother tab" in two.failed()
    slow.delay_s = 0.0
    assert "Paris" in one.opened().ask(QUESTION)


def test_too_little_room_is_said_and_what_came_is_kept(visitor: Visitor, served: str) -> None:
    devtools = visitor.page.context.new_cdp_session(visitor.page)
    quota = {"origin": served, "quotaSize": 30_000_000}
    visitor.visit()
    devtools.send("Storage.overrideQuotaForOrigin", quota)
    visitor.page.click("button[aria-label='Fetch smollm2']")
    assert "room" in visitor.failed() or "grants" in visitor.problem
    visitor.shot("8-no-room")
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": served})
    visitor.page.click("#models button.name")
    visitor.opened()
    (model,) = visitor.page.evaluate("zllm.engine.models.list()")
    assert model["complete"]


def test_without_webgpu_numpy_answers(
    playwright: Playwright, chromium_path: Path, served: str, shots: Path
) -> None:
    browser = playwright.chromium.launch(executable_path=str(chromium_path), args=["--no-sandbox"])
    visitor = Visitor(browser.new_page(), served, shots)
    visitor.visit("auto").fetch()
    assert "NumPy" in visitor.status
    assert "Paris" in visitor.ask(QUESTION)
    visitor.page.check("input[value=webgpu]")
    assert "WebGPU" in visitor.failed()
    visitor.shot("9-no-webgpu")
    browser.close()


def test_a_lost_device_does_not_end_an_answer(visitor: Visitor) -> None:
    page = visitor.visit("webgpu").fetch().page
    assert "swiftshader" in visitor.status.lower()
    undisturbed = visitor.ask(QUESTION)
    page.click("text=Regenerate")
    visitor.until(lambda: len(visitor.answer) > 3, "the answer begins")
    page.evaluate("zllm.engine.port.call('lose')")
    assert visitor.answered() == undisturbed
    assert "Paris" in undisturbed
    page.wait_for_selector("#picture .bar")
    visitor.shot("10-gpu")


def test_once_the_gpu_process_ended_for_good_numpy_goes_on(
    playwright: Playwright, chromium_path: Path, served: str, shots: Path
) -> None:
    """A browser offers a page no adapter after a second such end; here none after the first."""
    browser = playwright.chromium.launch(executable_path=str(chromium_path), args=ARGS)
    devtools = browser.new_browser_cdp_session()
    visitor = Visitor(browser.new_page(), served, shots)
    page = visitor.visit("webgpu").fetch().page
    undisturbed = visitor.ask(QUESTION)
    (worker,) = page.workers
    worker.evaluate("navigator.gpu.requestAdapter = async () => null")
    page.click("text=Regenerate")
    visitor.until(lambda: len(visitor.answer) > 3, "the answer begins")
    os.kill(gpu_process(devtools), signal.SIGKILL)
    assert visitor.answered() == undisturbed
    visitor.until(lambda: "NumPy" in visitor.status, "what it runs on is said")
    assert "GPU was lost" in (page.text_content("#notice") or "")
    visitor.shot("13-numpy-took-over")
    assert visitor.ask("What is the capital of Italy?")
    browser.close()


def gpu_process(devtools: Any) -> int:
    (pid,) = (pid for kind, pid in processes(devtools) if kind == "GPU")
    return pid


def processes(devtools: Any) -> list[tuple[str, int]]:
    found = devtools.send("SystemInfo.getProcessInfo")["processInfo"]
    return [(process["type"], int(process["id"])) for process in found]


def test_too_little_memory_of_a_device_is_said_with_a_way_on(visitor: Visitor) -> None:
    page = visitor.visit("webgpu").page
    page.wait_for_selector("body[data-ready]")
    (worker,) = page.workers
    worker.evaluate(NO_MEMORY)
    page.click("button[aria-label='Fetch smollm2']")
    assert "too little memory" in visitor.failed()
    visitor.shot("14-too-large")
    page.click("#problem >> text=/^Run it on the CPU/")
    assert "Paris" in visitor.opened().ask(QUESTION)


NO_MEMORY = """() => {
  const create = GPUDevice.prototype.createBuffer;
  GPUDevice.prototype.createBuffer = function (wanted) {
    if (wanted.size > 10e6) {
      const error = new GPUOutOfMemoryError("no");
      this.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
    }
    return create.call(this, wanted);
  };
}"""


def test_chats_of_two_tabs_are_kept(context: BrowserContext, served: str, shots: Path) -> None:
    one, two = (Visitor(context.new_page(), served, shots).visit().page for _ in range(2))
    for page, title in ((one, "first"), (two, "second"), (one, "third")):
        page.click("#new-chat")
        page.evaluate(SAY, title)
    two.wait_for_selector("#chats li:nth-child(3)")
    two.reload()
    said = two.eval_on_selector_all("#chats .name", "all => all.map(each => each.textContent)")
    assert said == ["third", "second", "first"]
    two.click("button[aria-label='Delete chat second']")
    one.wait_for_selector("#chats li:nth-child(3)", state="detached")


SAY = """text => {
  const { chats } = zllm.page;
  chats.current.messages.push({ role: "user", content: text });
  chats.save();
}"""


def test_a_cancelled_load_frees_its_memory_and_leaves_the_page_usable(visitor: Visitor) -> None:
    page = visitor.visit().page
    browser = page.context.browser
    assert browser is not None
    devtools = browser.new_browser_cdp_session()

    def held() -> float:
        """MB of the processes that hold a model: the page's and the GPU's (of /proc: Linux)."""
        pids = [pid for kind, pid in processes(devtools) if kind in ("renderer", "GPU")]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) / 256

    page.wait_for_selector("body[data-ready]")
    before = held()
    assert page.evaluate(CANCELLED, ["/models/" + SMOLLM2, "webgpu"]) == "stopped"
    assert held() > before + 80
    page.evaluate("zllm.engine.ready()")
    visitor.until(lambda: held() < before + 60, "the memory is free")
    page.reload()
    visitor.fetch()
    page.click(f"button[aria-label='Open {SMOLLM2}']")
    page.click("#cancel")
    visitor.until(lambda: page.is_hidden("#transfer"), "it ended")
    assert page.evaluate("zllm.engine.loaded") is None
    page.fill("#sampling-temperature", "0")
    assert "Paris" in visitor.fetch().ask(QUESTION)


CANCELLED = """async ([model, backend]) => {
  const controller = new AbortController();
  const onProgress = ({ stage, loaded, total }) => {
    if (stage === "load" && loaded > 0.7 * total) controller.abort();
  };
  const options = { backend, onProgress, signal: controller.signal };
  return zllm.engine.load(model, options).then(() => "loaded", error => error.code);
}"""


def test_the_example_page_of_the_readme(context: BrowserContext, served: str) -> None:
    page = context.new_page()
    page.goto(f"{served}/example.html")
    page.fill("#question", QUESTION)
    page.click("#ask")
    page.wait_for_selector("#ask:enabled", timeout=100_000)
    assert "Paris" in (page.text_content("#answer") or "")


def test_the_policy_holds_on_any_host(built: Built, context: BrowserContext) -> None:
    """The page's own meta element forbids what the server's header does."""
    policy = (
        (built.folder / "index.html").read_text().split('Content-Security-Policy" content="')[1]
    )
    assert "script-src 'self' 'wasm-unsafe-eval';" in policy.split('"')[0]
    with serving(built.folder, {}) as url:
        page = context.new_page()
        page.goto(f"{url}/")
        page.evaluate("setTimeout('window.evil = 1', 0)")
        page.wait_for_timeout(200)
        assert page.evaluate("window.evil") is None, "a text ran as a script"
