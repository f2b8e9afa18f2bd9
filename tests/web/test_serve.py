"""The server of a site: ranges, compression, headers, and nothing from outside its folder."""

from __future__ import annotations

import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.serving import serving
from zllm.errors import ZllmError
from zllm.web.build import MARK, SiteError
from zllm.web.serve import listen, serve

SCRIPT = "export const text = 'x';\n" * 200
MODEL = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("web")
    site = root / "site"
    site.mkdir()
    (site / MARK).write_text("{}")
    (site / "index.html").write_text("<!doctype html><title>page</title>")
    (site / "script.js").write_text(SCRIPT)
    (root / "secret.txt").write_text("secret")
    model = root / "tiny model.gguf"
    model.write_bytes(MODEL)
    with serving(site, {"tiny": model}) as address:
        yield address


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=named)) as answer:
            return answer.status, dict(answer.headers.items()), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers.items()), error.read()


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_the_page_is_at_the_root_with_its_policy(url: str) -> None:
    status, headers, body = get(f"{url}/")
    sent = lower(headers)
    assert status == 200 and b"page" in body
    assert sent["content-type"].startswith("text/html")
    assert "'wasm-unsafe-eval'" in sent["content-security-policy"]
    assert "'unsafe-eval'" not in sent["content-security-policy"].replace("'wasm-unsafe-eval'", "")
    assert "unsafe-inline" not in sent["content-security-policy"]
    assert sent["cross-origin-opener-policy"] == "same-origin"
    assert sent["x-content-type-options"] == "nosniff"


def test_scripts_are_compressed_where_that_is_understood(url: str) -> None:
    _, headers, body = get(f"{url}/script.js", Accept_Encoding="gzip, br")
    assert lower(headers)["content-encoding"] == "gzip"
    assert lower(headers)["content-type"].startswith("text/javascript")
    assert gzip.decompress(body).decode() == SCRIPT and len(body) < len(SCRIPT) / 10
    _, headers, body = get(f"{url}/script.js")
    assert "content-encoding" not in lower(headers) and body.decode() == SCRIPT


def test_a_model_is_read_in_ranges(url: str) -> None:
    (model,) = json.loads(get(f"{url}/models.json")[2])
    assert model["name"] == "tiny" and model["size"] == len(MODEL)
    address = f"{url}{model['url']}"
    assert get(address)[2] == MODEL
    status, headers, body = get(address, Range="bytes=300-399", Accept_Encoding="gzip")
    assert status == 206 and body == MODEL[300:400]
    assert lower(headers)["content-range"] == f"bytes 300-399/{len(MODEL)}"
    assert get(address, Range=f"bytes={len(MODEL)}-")[0] == 416


def test_what_changed_since_is_sent_whole(url: str) -> None:
    (model,) = json.loads(get(f"{url}/models.json")[2])
    address = f"{url}{model['url']}"
    etag = lower(get(address)[1])["etag"]
    assert get(address, Range="bytes=0-9", If_Range=etag)[0] == 206
    assert get(address, Range="bytes=0-9", If_Range='"another"')[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/%2e%2e/secret.txt", "/models/../secret.txt", "/models/secret.txt", "/no"],
)
def test_nothing_else_is_served(url: str, path: str) -> None:
    status, _, body = get(url + path)
    assert status == 404 and b"secret" not in body


def test_a_folder_that_is_no_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="zllm web build"):
        serve(tmp_path, {}, 0)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ZllmError, match=f"port {port} cannot be used"):
            listen(port)
