"""The machine a figure belongs to, and the files that results are written to."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Json = dict[str, Any]


def describe() -> Json:
    """CPU, cores, memory, system, and how busy the machine was when asked."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": load,
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def text(machine: Json) -> str:
    """The machine in one line of Markdown."""
    busy = machine["load_average"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
    load = "" if busy is None else f", load average before {busy:.1f}"
    return (
        f"{machine['date']}, commit {machine['commit']}. {where}, {machine['system']}, "
        f"Python {machine['python']}{load}."
    )


def write(name: str, markdown: str, data: Json, folder: Path = RESULTS) -> list[Path]:
    """`<date>-<name>.md` and `.json`; an earlier result of the same day gets a number."""
    day = data["machine"]["date"][:10]
    number, suffix = 1, ""
    while (folder / f"{day}-{name}{suffix}.json").exists():
        number += 1
        suffix = f"-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{day}-{name}{suffix}{end}" for end in (".md", ".json")]
    paths[0].write_text(markdown)
    paths[1].write_text(json.dumps(data, indent=1) + "\n")
    return paths
