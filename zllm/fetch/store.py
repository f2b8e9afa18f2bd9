"""The cache folder, and what every way of fetching a model into it shares."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Never

from zllm.errors import ZllmError

if TYPE_CHECKING:
    from tqdm import tqdm

CHUNK_BYTES = 1 << 20


class HubError(ZllmError):
    """A model cannot be found, fetched, verified or stored."""


def cache_dir() -> Path:
    """The folder of fetched models: $ZLLM_CACHE, else `zllm` in the user's cache folder."""
    if chosen := os.environ.get("ZLLM_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "zllm"


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn a failure to write below the cache folder into one HubError that names the folder."""
    try:
        yield
    except OSError as error:
        raise HubError(
            f"cannot store models in {cache_dir()}: {error.strerror or error}; "
            "set ZLLM_CACHE to a folder that can be written"
        ) from error


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file, progress(f"verifying {path.name}", path.stat().st_size) as bar:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def progress(what: str, size_bytes: int) -> tqdm[Never]:
    """A progress bar on stderr, where that is a terminal."""
    from tqdm import tqdm

    # disable=None is tqdm's word for "unless it is a terminal"
    bar: tqdm[Never] = tqdm(
        desc=what, total=size_bytes, unit="B", unit_scale=True, leave=False, disable=None
    )
    return bar
