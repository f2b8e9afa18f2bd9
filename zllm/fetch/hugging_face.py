"""Models from a Hugging Face hub: `hf:owner/repo/path/file.gguf`, or `hf:owner/repo` for a folder.

huggingface_hub (the extra `hub`) does the transfer: its cache folder, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE apply as they do everywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zllm.fetch.store import HubError

PREFIX = "hf:"

# What a model folder is read from; weights in other formats would only fill the disk.
FOLDER_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]


def split_name(name: str) -> tuple[str, str | None]:
    """`hf:owner/repo[/file]` as (repository, file or None). Raises HubError."""
    pieces = name.removeprefix(PREFIX).split("/")
    if len(pieces) < 2 or any(piece in ("", ".", "..") for piece in pieces):
        raise HubError(f"bad model name {name!r}: expected {PREFIX}owner/repo[/path/file.gguf]")
    return "/".join(pieces[:2]), "/".join(pieces[2:]) or None


def fetch(name: str, *, refresh: bool) -> Path:
    """The local path of a hub's file or folder, downloaded if need be.

    With `refresh` the hub is asked for a newer version of a file that is cached already.
    Raises HubError.
    """
    repository, file = split_name(name)
    hub = _library()
    with _hub_errors(hub, repository, file):
        if file is None:
            return _fetch_folder(hub, repository)
        if not refresh:
            cached = hub.try_to_load_from_cache(repository, file)
            if isinstance(cached, str):
                return Path(cached)
        return Path(hub.hf_hub_download(repository, file))


def _fetch_folder(hub: Any, repository: str) -> Path:
    folder = Path(
        hub.snapshot_download(repository, allow_patterns=FOLDER_PATTERNS, ignore_patterns=["*/*"])
    )
    if not any(folder.glob("*.safetensors")):
        raise HubError(
            f"{repository} holds no safetensors; name one file: {PREFIX}{repository}/FILE.gguf"
        )
    return folder


def _library() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise HubError(f"{PREFIX} models need huggingface_hub: pip install 'zllm[hub]'") from error
    hub: Any = huggingface_hub
    if not sys.stderr.isatty():
        hub.utils.disable_progress_bars()
        hub.utils.logging.set_verbosity_error()
    return hub


@contextmanager
def _hub_errors(hub: Any, repository: str, file: str | None) -> Iterator[None]:
    kinds = hub.errors
    endpoint = hub.constants.ENDPOINT
    what = f"{repository}/{file}" if file else repository
    try:
        yield
    except HubError:
        raise
    except kinds.GatedRepoError as error:
        raise HubError(
            f"{repository} is gated: accept its terms on its page, then set HF_TOKEN to your token"
        ) from error
    except kinds.RepositoryNotFoundError as error:
        raise HubError(
            f"{endpoint} has no repository {repository}, or it is private: check the name, "
            "or set HF_TOKEN"
        ) from error
    except kinds.LocalEntryNotFoundError as error:
        raise HubError(f"{what} is not cached and {endpoint} cannot be reached") from error
    except kinds.EntryNotFoundError as error:
        raise HubError(f"{repository} has no file {file}") from error
    # The library lets through its HTTP client's errors, whose type differs between its versions.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise HubError(f"cannot fetch {what} from {endpoint}: {reason[0]}") from error
