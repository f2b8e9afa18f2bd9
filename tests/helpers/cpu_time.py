"""CPU time of a child process: what others do on the machine hardly changes it."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Sequence


def run_timed(command: Sequence[str]) -> tuple[str, float]:
    """(its output, its CPU seconds). A failure raises."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, seconds
