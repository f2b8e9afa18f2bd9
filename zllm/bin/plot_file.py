"""The file of --plot: refused early if nothing can be drawn or written, and written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from zllm.errors import ZllmError


def check_plot(path: Path) -> None:
    """ZllmError, before anything is measured, if nothing can be drawn or written there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ZllmError("--plot needs matplotlib: pip install 'zllm[plot]'")
    if not path.parent.is_dir() or path.is_dir():
        raise ZllmError(f"--plot: cannot write {path}: expected a file in a folder that exists")


def write_figure(figure: Any, path: Path) -> None:
    """A matplotlib figure, in the format of the path's suffix. ZllmError if that fails."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: a suffix of no known format
        raise ZllmError(f"--plot: cannot write {path}: {error}") from None
