"""The cases that every backend has to pass: every op, over awkward shapes."""

from __future__ import annotations

from collections.abc import Iterator

from zllm.backend.selftest import row_entries, sequence_entries
from zllm.backend.selftest.entry import Entry


def catalogue() -> Iterator[Entry]:
    """Entries with names of their own; a case is built when it is wanted."""
    yield from row_entries.entries()
    yield from sequence_entries.entries()
