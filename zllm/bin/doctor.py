"""zllm doctor: what this machine offers, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from zllm.bin import adapters

CHROMIUM = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
REQUIRED = {"yaml": "PyYAML", "jinja2": "Jinja2", "tqdm": "tqdm"}
EXTRAS = {"webgpu": "wgpu", "hub": "huggingface_hub"}
# Below this an f32 matrix of a 1B model, or two copies of a small one, no longer fit.
LOW_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `fail` keeps the oracle from running, `warn` costs something else."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")


def run(args: argparse.Namespace) -> int:
    findings = examine()
    works = all(finding.status != "fail" for finding in findings)
    if args.json:
        print(json.dumps({"ok": works, "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            print(f"{finding.status:<4}  {finding.name:<8}  {finding.detail}")
            if finding.advice:
                print(f"{'':<16}→ {finding.advice}")
    return 0 if works else 1


def examine() -> list[Finding]:
    """Look at everything; what fails in an unforeseen way becomes a finding too."""
    findings: list[Finding] = []
    for name, look in CHECKS.items():
        try:
            findings += look()
        except Exception as error:
            detail = f"could not be checked: {type(error).__name__}: {error}"
            findings.append(Finding(name, "warn", detail, "report this as a bug of zllm doctor"))
    return findings


def _zllm() -> Iterable[Finding]:
    version = _version("zllm")
    if version is None:
        advice = "pip install zllm (or, in a clone, pip install -e .)"
        yield Finding("zllm", "warn", "runs from a folder, not installed", advice)
    else:
        yield Finding("zllm", "ok", version, data={"version": version})


def _required() -> Iterable[Finding]:
    for module, package in REQUIRED.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(
                "package", "fail", f"{package} is not installed", f"pip install {package}"
            )


def _python() -> Iterable[Finding]:
    version, system = platform.python_version(), platform.platform()
    data = {"version": version, "platform": system, "executable": sys.executable}
    yield Finding("python", "ok", f"{version} on {system}", data=data)


def _numpy() -> Iterable[Finding]:
    try:
        import numpy as np
    except ImportError as error:
        yield Finding("numpy", "fail", f"cannot be imported: {error}", "pip install numpy")
        return
    blas = _blas_name(np)
    data = {"version": np.__version__, "blas": blas}
    # Some CPU and OpenBLAS pairs are known to multiply wrongly; whole numbers tell for sure.
    whole = np.arange(256 * 256, dtype=np.float32).reshape(256, 256) % 7
    exact = np.einsum("ij,jk->ik", whole.astype(np.int64), whole.astype(np.int64))
    if np.array_equal(whole @ whole, exact.astype(np.float32)):
        yield Finding("numpy", "ok", f"{np.__version__} with {blas}", data=data)
    else:
        detail = f"{np.__version__} with {blas} multiplies matrices wrongly"
        yield Finding("numpy", "fail", detail, "pip install --upgrade numpy", data)


def _blas_name(np: Any) -> str:
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas.get('version', '')}".strip()
    except (KeyError, TypeError):
        return "an unknown BLAS"


def _cpu() -> Iterable[Finding]:
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    detail = f"{usable} of {total} cores usable, {platform.machine()}"
    yield Finding("cpu", "ok", detail, data={"cores": total, "usable": usable})


def _memory() -> Iterable[Finding]:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(f"SC_{kind}PHYS_PAGES") for kind in ("", "AV"))
    except (AttributeError, ValueError, OSError):
        yield Finding("memory", "warn", "this system does not tell its memory")
        return
    data = {"total_bytes": total, "free_bytes": free}
    low = total < LOW_MEMORY_BYTES
    advice = "keep to small quantised models" if low else ""
    detail = f"{_gib(free)} free of {_gib(total)}"
    yield Finding("memory", "warn" if low else "ok", detail, advice, data)


def _cache() -> Iterable[Finding]:
    from zllm import hub
    from zllm.fetch.store import cache_dir

    folder = cache_dir()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    models = [name for name in hub.MODELS if hub.is_cached(name)]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(nearest).free
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    data = {"path": str(folder), "writable": writable, "size_bytes": size, "free_bytes": free}
    data["models"] = models
    detail = f"{folder}: {_gib(size)} used, {_gib(free)} free, holds {', '.join(models) or 'none'}"
    if writable:
        yield Finding("cache", "ok", detail, "" if models else "zllm pull smollm2", data)
    else:
        advice = "set ZLLM_CACHE to a folder that can be written"
        yield Finding("cache", "warn", f"{folder} cannot be written", advice, data)


def _adapters() -> Iterable[Finding]:
    if importlib.util.find_spec("wgpu") is None:
        advice = "the oracle runs; for WebGPU: pip install 'zllm[webgpu]'"
        yield Finding("webgpu", "warn", "wgpu is not installed", advice)
        return
    found, problem = adapters.probe()
    if not found:
        advice = "install a GPU driver with Vulkan, or a software one (mesa-vulkan-drivers)"
        yield Finding("webgpu", "warn", problem or "no adapter", advice)
    for adapter in found:
        yield _adapter(adapter)
    if found and all(adapter["software"] for adapter in found):
        advice = "results are right but slow; a GPU needs its vendor's Vulkan driver"
        yield Finding("webgpu", "warn", "only software adapters", advice)


def _kernels() -> Iterable[Finding]:
    """What was found out about the kernels that models have used so far."""
    from zllm.backend.verdicts import RIGHT, WRONG, read_verdicts
    from zllm.fetch.store import cache_dir

    path = cache_dir() / "kernels.json"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_verdicts(path)
    for warning in caught:
        yield Finding("kernels", "warn", str(warning.message), f"remove {path}")
    for adapter, verdicts in found.items():
        counts = {what: list(verdicts.values()).count(what) for what in (RIGHT, WRONG)}
        detail = f"{adapter}: {counts[RIGHT]} of {len(verdicts)} kernels checked and right"
        advice = f"{counts[WRONG]} are wrong there and are replaced; update the driver"
        wrong = counts[WRONG] > 0
        data = {"adapter": adapter, **counts}
        yield Finding("kernels", "warn" if wrong else "ok", detail, advice if wrong else "", data)


def _adapter(adapter: dict[str, Any]) -> Finding:
    limits = adapter["limits"]
    binding, buffer = (
        _gib(limits[name] or 0) for name in ("max-storage-buffer-binding-size", "max-buffer-size")
    )
    kind = "software" if adapter["software"] else adapter["kind"]
    detail = (
        f"{adapter['name']} ({adapter['backend']}, {kind}): binding {binding}, buffer {buffer}, "
        f"{limits['max-compute-invocations-per-workgroup']} invocations, "
        f"{' '.join(adapter['features']) or 'no optional features'}"
    )
    return Finding("webgpu", "ok", detail, data=adapter)


def find_chromium() -> Path | None:
    """The browser that the browser tests drive: $ZLLM_CHROMIUM, else the first one on PATH."""
    named = os.environ.get("ZLLM_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, CHROMIUM)), None)
    return Path(found) if found else None


def _chromium() -> Iterable[Finding]:
    found = find_chromium()
    if found is not None:
        yield Finding("chromium", "ok", str(found), data={"path": str(found)})
    else:
        advice = "only the browser tests need it: install chromium, or set ZLLM_CHROMIUM"
        yield Finding("chromium", "warn", "not found", advice)


def _extras() -> Iterable[Finding]:
    for extra, package in EXTRAS.items():
        version = _version(package)
        if version is None:
            advice = f"pip install 'zllm[{extra}]'"
            yield Finding("extra", "warn", f"{extra}: {package} is not installed", advice)
        else:
            data = {"extra": extra, "package": package, "version": version}
            yield Finding("extra", "ok", f"{extra}: {package} {version}", data=data)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


CHECKS: dict[str, Callable[[], Iterable[Finding]]] = {
    "zllm": _zllm,
    "package": _required,
    "python": _python,
    "numpy": _numpy,
    "cpu": _cpu,
    "memory": _memory,
    "cache": _cache,
    "webgpu": _adapters,
    "kernels": _kernels,
    "chromium": _chromium,
    "extra": _extras,
}
