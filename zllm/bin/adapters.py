"""The WebGPU adapters of this machine as JSON, from a process of its own.

A broken driver can end the process that asks for adapters; `zllm doctor` must outlive that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TIMEOUT_SECONDS = 60  # a cold driver of a large GPU takes several seconds
LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
)
FEATURES = ("shader-f16", "subgroup", "timestamp-query")


def probe() -> tuple[list[dict[str, Any]], str]:
    """The adapters and, where they could not be listed, the reason."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"listing adapters failed: {error}"
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return [], f"listing adapters ended with code {done.returncode}: {reason[0]}"
    adapters: list[dict[str, Any]] = json.loads(done.stdout)
    return adapters, ""


def adapters() -> list[dict[str, Any]]:
    """Name, backend, kind, limits in bytes or counts, and features of each adapter."""
    import wgpu

    return [
        {
            "name": adapter.info["device"],
            "driver": adapter.info["description"],
            "backend": adapter.info["backend_type"],
            "kind": adapter.info["adapter_type"],
            "software": adapter.info["adapter_type"] == "CPU",
            "limits": {name: adapter.limits.get(name) for name in LIMITS},
            "features": [name for name in FEATURES if name in adapter.features],
        }
        for adapter in wgpu.gpu.enumerate_adapters_sync()
    ]


if __name__ == "__main__":
    print(json.dumps(adapters()))
