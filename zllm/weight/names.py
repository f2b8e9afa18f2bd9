"""From a file's tensor names to canonical ones, with nothing missing, misshapen or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from zllm.errors import LoadError
from zllm.quant.formats import FORMATS
from zllm.quant.weights import has_codec
from zllm.weight.byte_source import RefusedBytes
from zllm.weight.linear_weight import LinearWeight, format_of

Tensors = dict[str, LinearWeight]


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that the model needs: its canonical name, its name in the file, its shape."""

    name: str
    stored_name: str
    shape: tuple[int, ...]


class MissingTensor(LoadError):
    """Says which tensor: whoever makes a checkpoint learns from it what to write.

    following: the tensors expected after it, whether missing or not.
    """

    def __init__(self, expected: Expected, following: Iterator[Expected]) -> None:
        super().__init__(f"tensor {expected.stored_name!r} ({expected.name}) is missing")
        self.expected = expected
        self.following = following


def select(
    tensors: Mapping[str, LinearWeight], expected: Iterable[Expected], *, skip: re.Pattern[str]
) -> Tensors:
    """Canonical name -> weight. Names that fully match `skip` are left out.

    LoadError on a missing tensor, a wrong shape, or a tensor that is neither expected nor skipped.
    `expected` may be lazy: it is dropped at the first missing tensor, however many were to follow.
    """
    selected: Tensors = {}
    used: set[str] = set()
    remaining = iter(expected)
    for want in remaining:
        weight = tensors.get(want.stored_name)
        if weight is None:
            raise MissingTensor(want, remaining)
        if weight.shape != want.shape:
            raise LoadError(
                f"tensor {want.stored_name!r}: shape {list(weight.shape)}, the config asks for"
                f" {list(want.shape)}"
            )
        selected[want.name] = _usable(want.stored_name, weight)
        used.add(want.stored_name)
    unknown = [name for name in tensors if name not in used and not skip.fullmatch(name)]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise LoadError(f"tensors that this architecture has no use for: {unknown[:5]}{more}")
    return selected


def _usable(stored_name: str, weight: LinearWeight) -> LinearWeight:
    """The weight itself, or one that refuses to be read because its type has no codec."""
    format = format_of(weight)
    if has_codec(format):
        return weight
    reason = (
        f"tensor {stored_name!r}: type {format} is not supported, supported: {', '.join(FORMATS)}"
    )
    return replace(weight, data=RefusedBytes(weight.data.size_bytes, reason))
