"""The store of models (engine/store.js) where garbage is collected all the time."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Playwright

from tests.browser.conftest import ARGS
from tests.helpers.serving import serving
from zllm.web.build import Built

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

# The engine's worker; beside its work garbage is collected.
COLLECTING = 'import "/engine/worker.js";\nsetInterval(gc, 0);\n'
ROUNDS = """async ([url, times]) => {
  const { Worker } = window;
  window.Worker = class extends Worker {
    constructor(_, options) { super("/suite/gc.js", options); }
  };
  const { Engine } = await import("/engine/engine.js");
  const { models } = new Engine();
  const seen = [];
  for (let time = 0; time < times; time++) {
    const { id } = await models.download(url);
    seen.push((await models.list()).map(({ size, complete }) => [size, complete]));
    await models.remove(id);
  }
  return seen;
}"""


def test_answers_come_though_handles_are_garbage(
    playwright: Playwright, chromium_path: Path, built: Built, tmp_path: Path
) -> None:
    """Chromium 156 forgets what a handle of OPFS was asked when the handle is collected.

    Seen to hang where only one handle was not kept while it was asked.
    """
    (built.folder / "suite").mkdir(exist_ok=True)
    (built.folder / "suite" / "gc.js").write_text(COLLECTING)
    file = tmp_path / "some.gguf"
    file.write_bytes(bytes(range(256)) * 40_000)
    browser = playwright.chromium.launch(
        executable_path=str(chromium_path), args=[*ARGS, "--js-flags=--expose-gc"]
    )
    with serving(built.folder, {"some": file}) as url:
        page = browser.new_page()
        page.goto(f"{url}/models.json")
        seen = page.evaluate(ROUNDS, [f"{url}/models/{file.name}", 12])
    browser.close()
    assert seen == [[[file.stat().st_size, True]]] * 12
