"""zLLM's page beside wllama (llama.cpp in WebAssembly) in one Chromium: decode and first tokens.

Needs Chromium, npm (for the package @wllama/wllama) and SmolLM2 (`zllm pull smollm2`). An idle
machine: two cores are shared by the page, its worker and the GPU process.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.machine import describe
from tests.helpers.serving import serving
from zllm import hub
from zllm.bin.doctor import find_chromium
from zllm.web.build import build

WLLAMA = "@wllama/wllama@3.13.0"
QUESTIONS = [
    "Explain in two sentences why the sky is blue.",
    "Describe in two sentences how bread is made.",
    "Say in two sentences what a computer does.",
    "Explain in two sentences why leaves fall.",
]
TOKENS = 64
ARGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]

FOLDER = Path(__file__).parent / "browser"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    chromium = find_chromium()
    assert chromium is not None, "no Chromium: install one"
    model = hub.pull("smollm2")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        build(folder / "site")
        browser = playwright.chromium.launch(executable_path=str(chromium), args=ARGS)
        report: dict[str, Any] = {"machine": describe(), "tokens": TOKENS}
        with serving(folder / "site", {"smollm2": model}) as url:
            for backend in ("oracle", "webgpu"):
                report[backend] = _zllm(browser, url, backend)
                print(_line(backend, report[backend]), flush=True)
        with _peer(folder / "peer", model) as url:
            report["wllama"] = _wllama(browser, url)
            print(_line("wllama", report["wllama"]), flush=True)
        browser.close()
    for backend in ("oracle", "webgpu"):
        report[f"{backend} over wllama"] = ratios(report[backend]["runs"], report["wllama"]["runs"])
        print(f"{backend} over wllama: {report[f'{backend} over wllama']}")
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


def _zllm(browser: Browser, url: str, backend: str) -> Any:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.goto(f"{url}/models.json")
    result = page.evaluate((FOLDER / "zllm.js").read_text(), [backend, QUESTIONS, TOKENS])
    context.close()
    return result


def _wllama(browser: Browser, url: str) -> Any:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.goto(url)
    page.wait_for_function("window.ready")
    result = page.evaluate("([q, n, t]) => measure(q, n, t)", [QUESTIONS, TOKENS, 2])
    context.close()
    return result


class _Isolated(http.server.SimpleHTTPRequestHandler):
    """With the headers that WebAssembly threads need."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _peer(folder: Path, model: Path) -> Iterator[str]:
    folder.mkdir()
    npm = ["npm", "pack", "--silent", WLLAMA]
    packed = subprocess.run(npm, cwd=folder, check=True, capture_output=True, text=True)
    shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder, "gztar")
    shutil.copy(FOLDER / "wllama.html", folder / "index.html")
    (folder / "model.gguf").symlink_to(model)
    handler = functools.partial(_Isolated, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def ratios(own: list[dict[str, Any]], peer: list[dict[str, Any]]) -> dict[str, float]:
    """Best of ours over best of theirs: decode rates, and times to the first token."""

    def best(runs: list[dict[str, Any]], what: str, choose: Any) -> float:
        return float(choose(run[what] for run in runs))

    return {
        "decode": best(own, "tok_s", max) / best(peer, "tok_s", max),
        "first_token": best(own, "ttft_ms", min) / best(peer, "ttft_ms", min),
        "first_token_repeated": best(own, "repeated_ttft_ms", min)
        / best(peer, "repeated_ttft_ms", min),
    }


def _line(name: str, result: dict[str, Any]) -> str:
    runs = result["runs"]
    text = (
        f"{name}: {max(r['tok_s'] for r in runs):.1f} tokens/s, first token "
        f"{min(r['ttft_ms'] for r in runs):.0f} ms, repeated "
        f"{min(r['repeated_ttft_ms'] for r in runs):.0f} ms"
    )
    if "boot_s" in result:
        worker = [r["worker_ms"] for r in runs if r["worker_ms"] is not None]
        text += (
            f"; ready after {result['boot_s']:.1f} s, fetched in {result['fetch_ms'] / 1e3:.1f} s, "
            f"loaded in {result['weights_ms'] / 1e3:.1f} s, "
            f"heap {result['heap_bytes'] / 1e6:.0f} MB, "
            f"frames {result['frame_ms']['median']:.1f} ms"
        )
        if worker:
            request = min(r["request_ms"] for r in runs)
            text += f", worker {min(worker):.2f} ms a token and {request:.1f} ms a repeated request"
    return text


if __name__ == "__main__":
    main()
