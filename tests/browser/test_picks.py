"""Files and folders that a visitor picks or drops on the page."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.visitor import QUESTION, Visitor
from tests.helpers.llama_gguf import write_llama_gguf

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_a_file_of_the_visitor_is_opened_without_a_copy(
    visitor: Visitor, smollm2_path: Path, tmp_path: Path
) -> None:
    page = visitor.visit().page
    page.set_input_files("#file-input", smollm2_path)
    visitor.opened()
    assert "Paris" in visitor.ask(QUESTION)
    assert page.evaluate("zllm.engine.models.list()") == []
    for name, data, words in ODD_FILES:
        odd = tmp_path / name
        odd.write_bytes(data or smollm2_path.read_bytes()[:50_000_000])
        page.set_input_files("#file-input", odd)
        visitor.until(lambda: page.is_hidden("#transfer"), "it was looked at")
        assert visitor.failed().startswith(name) and words in visitor.problem
        page.click("button[aria-label=Dismiss]")
    visitor.shot("6-not-a-model")
    assert smollm2_path.name in visitor.status, "the model at hand stays"
    assert visitor.ask(QUESTION)


ODD_FILES = (
    ("holiday ünï 模型.gguf", b"JFIF" * 1000, "not a model file"),
    ("a byte.gguf", b"\0", "not a model file"),
    ("a zip.zip", b"PK\3\4" * 20, "not a model file"),
    ("cut off.gguf", b"", "it may be cut off"),
)


def test_a_folder_of_safetensors_is_opened(
    visitor: Visitor, data_dir: Path, tmp_path: Path
) -> None:
    page = visitor.visit().page
    folder = tmp_path / "Modell ünï 模型"
    shutil.copytree(data_dir / "golden" / "qwen3", folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    page.set_input_files("#folder-input", folder)
    visitor.until(lambda: visitor.status == "Modell ünï 模型 on NumPy", "it is open")
    assert "cannot be asked" in visitor.failed() and "no tokenizer.json" in visitor.problem
    assert page.evaluate("zllm.engine.loaded.architecture") == "qwen3"
    (folder / "tokenizer.json").write_bytes(b"")
    page.set_input_files("#folder-input", folder)
    visitor.until(
        lambda: visitor.problem.startswith("tokenizer.json: not valid JSON"), "it is said"
    )
    (folder / "config.json").unlink()
    page.set_input_files("#folder-input", folder)
    visitor.until(lambda: "no config.json" in visitor.problem, "it is said")


def drop(page: Page, *paths: Path) -> None:
    devtools = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        event = {"type": kind, "x": 600, "y": 300, "data": data}
        devtools.send("Input.dispatchDragEvent", event)


def test_a_dropped_folder_of_models_is_a_choice(
    visitor: Visitor, data_dir: Path, tmp_path: Path
) -> None:
    page = visitor.visit().page
    folder = tmp_path / "my models"
    for name in ("qwen3", "llama"):
        shutil.copytree(data_dir / "golden" / name, folder / "deeper" / name)
    (folder / "notes.txt").write_text("mine")
    drop(page, folder)
    page.wait_for_selector("#notice")
    visitor.shot("16-which-model")
    assert "2 models" in (page.text_content("#notice") or "")
    page.click("#notice >> text=llama")
    visitor.until(lambda: visitor.status == "llama on NumPy", "the chosen one is open")
    assert page.evaluate("zllm.engine.loaded.architecture") == "llama"
    assert "no tokenizer.json" in visitor.failed()
    shutil.rmtree(folder / "deeper")
    for dropped, words in ((folder, "not a model file"), (tmp_path / "empty", "nothing is in")):
        dropped.mkdir(exist_ok=True)
        page.click("button[aria-label=Dismiss]")
        drop(page, dropped)
        assert words in visitor.failed().lower()
    assert visitor.status == "llama on NumPy", "the model at hand stays"


@pytest.mark.parametrize("backend", ["webgpu", "oracle"])
def test_a_file_of_more_than_four_gigabytes(
    visitor: Visitor, data_dir: Path, tmp_path: Path, backend: str
) -> None:
    """Its tensors lie behind that: offsets of 32 bits do not reach them."""
    page = visitor.visit(backend).page
    answers = []
    for name, gap in (("near.gguf", 0), ("far.gguf", (1 << 32) + 64)):
        path = write_llama_gguf(data_dir / "golden" / "llama", tmp_path / name, gap=gap)
        page.set_input_files("#file-input", path)
        visitor.until(lambda: visitor.status.startswith(path.name), "it is open")  # noqa: B023
        answers.append(page.evaluate(TWELVE))
    assert answers[0] == answers[1] and len(answers[0]) == 12
    visitor.errors.clear()  # neither has a tokenizer


TWELVE = """async () => {
  const how = { max_tokens: 12, temperature: 0, ignore_eos: true, return_token_ids: true };
  const request = { tokens: [5, 9, 2, 17, 30], ...how };
  return (await zllm.engine.chat.completions.create(request)).choices[0].token_ids;
}"""


def test_a_model_without_a_chat_template_goes_on_with_a_text(
    visitor: Visitor, data_dir: Path, tmp_path: Path
) -> None:
    page = visitor.visit().page
    folder = tmp_path / "base"
    shutil.copytree(data_dir / "golden" / "qwen3", folder)
    letters = {letter: id for id, letter in enumerate(LETTERS)}
    model = {"type": "BPE", "vocab": letters, "merges": []}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    parts = {"model": model, "pre_tokenizer": byte_level, "decoder": byte_level}
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    page.evaluate(RECORD)
    page.set_input_files("#folder-input", folder)
    visitor.opened()  # and at once asked: how it can be asked is not known yet
    assert visitor.ask("Once upon a time")
    assert visitor.ask("Then")
    said = page.evaluate("zllm.page.chats.current.messages.map(message => message.content)")
    assert page.evaluate("asked.prompt") == f"Once upon a time{said[1]}\nThen"
    page.set_input_files("#folder-input", folder)
    page.wait_for_selector("#notice")
    assert "no chat template" in (page.text_content("#notice") or "")

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    page.set_input_files("#file-input", broken)
    visitor.failed()
    page.wait_for_selector("text=no chat template")  # still known of the one that stays


def test_nothing_is_said_of_a_model_that_gave_way_to_another(
    visitor: Visitor, data_dir: Path
) -> None:
    page = visitor.visit().page
    page.wait_for_selector("body[data-ready]")
    page.evaluate(REFUSED)
    for _ in range(2):  # the first is still asked how it can be asked
        page.set_input_files("#folder-input", data_dir / "golden" / "llama")
        visitor.opened()
    page.evaluate("refuse()")
    assert not visitor.problem
    assert page.is_hidden("#notice")


# What is asked is kept, and how a model can be asked is found out slowly.
RECORD = """() => {
  const { chat: { completions }, countTokens } = zllm.engine;
  zllm.engine.countTokens = async function (request) {
    await new Promise(resolve => setTimeout(resolve, 700));
    return countTokens.call(this, request);
  };
  const create = completions.create;
  completions.create = (request, options) => create(window.asked = request, options);
}"""
# How the first model can be asked is answered late, and in the negative; all later ones can be.
REFUSED = """() => {
  let late;
  const asked = new Promise((resolve, reject) => { late = reject; });
  let first = asked;
  zllm.engine.countTokens = async () => { const now = first; first = null; await now; };
  window.refuse = async () => {
    late(new Error("no model is loaded"));
    first = Promise.reject(new Error("no model is loaded")); // nor as a text
    await asked.catch(() => null);
    await new Promise(resolve => setTimeout(resolve, 100));
  };
}"""
# As byte-level tokenizers write them: a space and the end of a line have letters of their own.
LETTERS = "\u0120\u010a" + string.ascii_letters + string.digits + string.punctuation
