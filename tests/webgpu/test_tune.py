"""Tuning: what is fastest and right is chosen, kept per adapter, and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.webgpu import tuned
from zllm.backend.webgpu.device import DeviceInfo
from zllm.backend.webgpu.tracing import TracedKernel
from zllm.backend.webgpu.tune import Tried, best, search
from zllm.backend.webgpu.tuned import SETTINGS, keep, with_found
from zllm.backend.webgpu.tuning import Choice, Few, Tuning
from zllm.errors import BackendError

INFO = DeviceInfo("", False, frozenset(), 0, 1 << 27, 1 << 28, 65535, 16384, 256)
SLOW, FAST, WRONG = Few(64, 2, 8), Few(128, 8, 16), Few(256, 4, 32)


def few(tuning: Tuning, format: str, tokens: int) -> Few:
    return tuning.few(format, tokens, pairs=True)


def test_the_fastest_right_setting_is_chosen_for_each_format() -> None:
    tried = [
        Tried(1, None, {"f16": 4.0, "q8_0": 2.0}, True),
        Tried(1, SLOW, {"f16": 5.0, "q8_0": 1.0}, True),
        Tried(1, FAST, {"f16": 3.0, "q8_0": 1.5}, True),
        Tried(1, WRONG, {"f16": 1.0, "q8_0": 0.1}, False),
        Tried(8, None, {"f16": 4.0}, True),
        Tried(8, FAST, {"f16": 3.99}, True),  # not worth a change
    ]
    assert best(tried) == (Choice("f16", 1, FAST), Choice("q8_0", 1, SLOW))


class Device:
    def __init__(self, info: Any) -> None:
        self.info = info


class Backend:
    def __init__(self, info: Any) -> None:
        self.device = Device(info)


def kernel(name: str, ns: float) -> TracedKernel:
    return TracedKernel(name, "linear", "w", 100.0, 100.0 + ns, 1.0, 1.0)


def test_every_setting_is_in_force_while_it_is_measured() -> None:
    backend: Any = Backend(INFO)
    seen: list[tuple[int, Few]] = []

    def measure(tokens: int) -> Any:
        few = backend.device.info.tuning.few("f16", tokens, pairs=True)
        as_it_was = backend.device.info is INFO
        seen.append((tokens, few))
        ns = 1e6 * (100 if as_it_was else few.rows)
        rounds = [
            [kernel("product_staged_f16", ns + extra), kernel("rms_norm", 5)] for extra in (9, 0)
        ]
        return [[few.lanes == 32 and not as_it_was]], rounds

    tried = list(search(backend, (1, 8), measure))
    assert backend.device.info is INFO
    assert [few for tokens, few in seen if tokens == 8] == [
        INFO.tuning.few("f16", 8, pairs=True),
        *SETTINGS,
    ]
    assert all(t.ms == {"f16": t.few.rows} for t in tried if t.few)
    assert {t.few.lanes for t in tried if t.few and not t.right} == {32}
    assert [c.few.rows for c in best(tried)] == [2, 2]


def test_what_was_found_is_read_again_for_its_adapter(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tuning.json"
    usual = Tuning((Choice("f16", 4, SLOW),))
    assert with_found(usual, path, "a") == usual
    keep(path, "a", (Choice("f16", 8, SLOW), Choice("f16", 1, FAST)))
    keep(path, "b", (Choice("q4_0", 1, SLOW),))
    keep(path, "a", (Choice("f16", 8, FAST),))
    found = with_found(usual, path, "a")
    assert found.choices == (Choice("f16", 1, FAST), Choice("f16", 8, FAST), *usual.choices)
    assert few(found, "f16", 5) == FAST and few(found, "q4_0", 1) == few(usual, "q4_0", 1)
    assert few(with_found(usual, path, "b"), "q4_0", 1) == SLOW


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"version": 1}',
        '{"version": 1, "adapters": {"a": [{"format": "f16", "tokens": 1, "few": {"rows": 3}}]}}',
        '{"version": 1, "adapters": {"a": [{"format": "f16", "tokens": 1}]}}',
    ],
)
def test_a_damaged_file_is_ignored(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(tuned, "notice", told.append)
    path = tmp_path / "tuning.json"
    path.write_text(text)
    assert with_found(Tuning(), path, "a") == Tuning()
    assert len(told) == 1 and "run `zllm bench --tune` again" in told[0]
    keep(path, "a", (Choice("f16", 1, FAST),))
    assert len(json.loads(path.read_text())["adapters"]["a"]) == 1


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="set ZLLM_CACHE to a folder"):
        keep(tmp_path / "file" / "tuning.json", "a", (Choice("f16", 1, FAST),))
