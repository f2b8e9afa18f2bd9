"""An exported model in headless Chromium, replayed by JavaScript: golden logits."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from zllm.backend.contract import Group, PlanKey
from zllm.backend.webgpu.backend import WebGpuBackend
from zllm.backend.webgpu.export import SWIFTSHADER, ExportDevice
from zllm.backend.webgpu.store import Dtype
from zllm.runtime.compose import Groups, ModelResources
from zllm.runtime.recorder import Recorder
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import F32

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
PAGE_SLOTS = 16
CONTEXT = 256
LANES = 1


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of tests/browser under /, exported models under /export/."""

    def __init__(self, *args: Any, export: Path, **kwargs: Any) -> None:
        self.export = export
        super().__init__(*args, directory=str(HERE), **kwargs)

    def translate_path(self, path: str) -> str:
        prefix, _, name = path.partition("/export/")
        if name and not prefix:
            return str(self.export / Path(name).name)
        return super().translate_path(path)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def site(export_dir: Path) -> Iterator[str]:
    handler = functools.partial(Handler, export=export_dir)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def page(chromium: Browser, site: str) -> Iterator[Page]:
    opened = chromium.new_page()
    opened.set_default_timeout(280_000)
    opened.goto(f"{site}/index.html")
    yield opened
    opened.close()


@dataclass(frozen=True, slots=True)
class Exporter:
    """A model compiled for SwiftShader into `directory`/`name`.{json,bin}."""

    directory: Path
    name: str
    model: Path
    kv_dtype: Dtype = "f16"

    def write(self, keys: dict[str, PlanKey]) -> None:
        device = ExportDevice(SWIFTSHADER, self.directory / self.name)
        backend = WebGpuBackend(device, lanes=LANES, kv_dtype=self.kv_dtype)
        group = Group("full", PAGE_SLOTS, 1 + CONTEXT // PAGE_SLOTS)
        with closing(open_checkpoint(self.model)) as checkpoint:
            resources = ModelResources(
                backend, checkpoint.tensors, F32, Groups(group, Group("state", 1, 2)), CONTEXT
            )
            module = import_module(f"zllm.runtime.{checkpoint.architecture}.decoder")
            decoder = module.Decoder(checkpoint.config, resources)
            plans = {}
            for name, key in keys.items():
                recorder = Recorder(backend.bucket(key), backend.missing)
                decoder(recorder)
                plans[name] = backend.compile(recorder.finish([group]))
        device.save(plans)
        backend.close()


RUN = """async ([base, what, ...rest]) => {
  const replay = await import("/replay.js");
  const model = await replay.load(base);
  const answers = [];
  for (const args of rest) answers.push(await replay[what](model, ...args));
  const { errors, adapter, pipelineMs } = model;
  return { answers, errors, adapter: adapter.architecture, pipelineMs };
}"""


def run(page: Page, name: str, what: str, *calls: list[Any]) -> list[Any]:
    """Load the exported model `name` and call `what` of replay.js once per list of arguments."""
    out = page.evaluate(RUN, [f"/export/{name}", what, *calls])
    assert out["errors"] == []
    assert out["adapter"] == SWIFTSHADER.name
    print(f"{name}: pipelines {out['pipelineMs']:.0f} ms")
    answers: list[Any] = out["answers"]
    return answers


OPTIONS = {"pageSlots": PAGE_SLOTS, "scratchLane": LANES}


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("f32", 1e-3), ("f16", 1e-2)])
@pytest.mark.parametrize("name", ["llama", "llama_rope3"])
def test_golden_logits(
    page: Page, export_dir: Path, data_dir: Path, name: str, kv_dtype: Dtype, tolerance: float
) -> None:
    folder = data_dir / "golden" / name
    golden = np.load(folder / "golden.npz")
    keys = {
        "prefill": PlanKey(64, 1, CONTEXT, "logits"),
        "append": PlanKey(16, 1, CONTEXT, "logits"),
        "decode": PlanKey(1, 1, CONTEXT, "logits"),
    }
    Exporter(export_dir, name, folder, kv_dtype).write(keys)
    rounds = {
        0: [["prefill", 27]],
        1: [["prefill", 29], ["append", 13], *[["decode", 1]] * 5, ["append", 16], ["append", 8]],
        2: [["decode", 1]] * 3,
    }
    calls = [[golden[f"p{i}_ids"].tolist(), rounds[i], OPTIONS] for i in rounds]
    for i, logits in enumerate(run(page, name, "logits", *calls)):
        truth = golden[f"p{i}_truth"]
        worst = np.abs(np.array(logits, np.float32) - truth).max() / np.abs(truth).max()
        print(f"{name} prompt {i}: {worst:.1e} of the largest logit")
        assert worst <= tolerance
